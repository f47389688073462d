"""What a loss of power may leave of a folder, from the system calls that processes made in it.

POSIX promises little: of a file, what an fsync of it has covered; of a name, what an fsync of its
folder has covered.  So of everything later each change by itself is there or not, and of a write a
part, zeros or anything may be there.  A rename is never half done.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,lseek,write,writev,pwrite64,pwritev,pwritev2,"
    "truncate,ftruncate,fallocate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,copy_file_range,sendfile"
)
"""For strace; with ``-xx``, and ``-s`` larger than any write."""
_LINE = re.compile(r"(\d+) +(?:(<\.\.\.) )?(\w+)(?: resumed>|\()(.*)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_RESULT = re.compile(r"\) += (-?\d+)")


class Call(NamedTuple):
    """A system call of a process, or its beginning where another thread had a call in between."""

    pid: int
    name: str
    text: str
    """As strace prints the arguments."""
    result: int | None
    """None: it has only begun."""

    @property
    def texts(self) -> list[bytes]:
        """The arguments that are paths or bytes."""
        return [bytes.fromhex(text.replace(r"\x", "")) for text in _TEXT.findall(self.text)]

    def number(self, at: int) -> int:
        """An argument of a call whose arguments before it are numbers."""
        return int(self.text.split(", ")[at].rstrip(")"), 0)


def calls(trace: Path) -> Iterator[Call]:
    """The calls in a file that strace has written, those that failed left out."""
    begun: dict[int, str] = {}
    with trace.open() as lines:
        for line in lines:
            found = _LINE.match(line)
            if not found:  # a signal, or an end
                continue
            pid, resumed, name, rest = int(found[1]), found[2], found[3], found[4].rstrip()
            if rest.endswith("<unfinished ...>"):
                begun[pid] = rest.removesuffix("<unfinished ...>")
                yield Call(pid, name, begun[pid], None)
                continue
            rest = begun.pop(pid) + rest if resumed else rest
            result = _RESULT.search(rest)
            if result is None:  # the process was killed in it
                continue
            text = rest[: result.start()]
            if not resumed:
                yield Call(pid, name, text, None)
            if int(result[1]) >= 0:
                yield Call(pid, name, text, int(result[1]))


Change = tuple[str, Any, Any]


@dataclass(eq=False)
class File:
    """A file: what is on the disk, and the changes since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    """("write", offset, content) or ("size", bytes, None)."""

    def sync(self, changes: int) -> None:
        """So many of the first changes are on the disk."""
        for change in self.pending[:changes]:
            _write(self.durable, change)
        del self.pending[:changes]

    @property
    def content(self) -> bytearray:
        """What a process reads."""
        made = bytearray(self.durable)
        for change in self.pending:
            _write(made, change)
        return made

    def left(self, draw: Random) -> bytearray:
        """What a loss of power may leave."""
        made = bytearray(self.durable)
        for kind, where, content in self.pending:
            how = draw.choice(("whole", "whole", "lost", "torn", "zeros", "anything"))
            if how == "lost":
                continue
            if kind == "write" and how == "torn":
                content = content[: draw.randrange(len(content) + 1)]
            elif kind == "write" and how == "zeros":
                content = bytes(len(content))
            elif kind == "write" and how == "anything":
                content = draw.randbytes(len(content))
            _write(made, (kind, where, content))
        return made


def _write(content: bytearray, change: Change) -> None:
    kind, where, written = change
    size = where if kind == "size" else where + len(written)
    if kind == "size":
        del content[size:]
    content.extend(bytes(max(0, size - len(content))))
    if kind == "write":
        content[where:size] = written


@dataclass(eq=False)
class Folder:
    """A folder: its names on the disk, and the changes since."""

    durable: "dict[bytes, File | Folder]" = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    """("name", name, what) or ("gone", name, None), or ("renamed", (old, new), what)."""

    def sync(self, changes: int) -> None:
        """So many of the first changes are on the disk."""
        for change in self.pending[:changes]:
            _name(self.durable, change)
        del self.pending[:changes]

    @property
    def names(self) -> "dict[bytes, File | Folder]":
        """What a process finds."""
        return self._after(self.pending)

    def left(self, draw: Random) -> "dict[bytes, File | Folder]":
        """What a loss of power may leave."""
        return self._after(change for change in self.pending if draw.random() < 0.6)

    def _after(self, changes: Iterable[Change]) -> "dict[bytes, File | Folder]":
        made = dict(self.durable)
        for change in changes:
            _name(made, change)
        return made


def _name(names: "dict[bytes, File | Folder]", change: Change) -> None:
    kind, name, what = change
    if kind == "name":
        names[name] = what
    elif kind == "gone":
        names.pop(name, None)
    else:
        names.pop(name[0], None)
        names[name[1]] = what


@dataclass
class _Open:
    """An open file or folder of a process."""

    what: File | Folder
    appends: bool
    at: int = 0


class Disk:
    """A folder and all below it, as the calls of processes change it.

    Args:
        root: the folder, which is empty when the first call is made.
    """

    def __init__(self, root: Path) -> None:
        self._root, self.top = os.fsencode(root), Folder()
        self._open: dict[int, _Open] = {}
        self._syncing: dict[int, int] = {}

    def begin_process(self) -> None:
        """Another process makes the calls that follow."""
        self._open.clear()

    def play(self, call: Call) -> File | Folder | None:
        """Make a call; the file or folder that it has changed, or put on the disk.

        Raises:
            NotImplementedError: it is one that this class does not know, in the folder.
        """
        if call.result is None:
            self._begin(call)
            return None
        if call.name in ("fsync", "fdatasync"):
            found = self._open.get(call.number(0))
            if found is None:
                return None
            found.what.sync(self._syncing.pop(call.pid))
            return found.what
        if call.name in ("open", "openat", "creat"):
            return self._opened(call)
        if call.texts and call.name not in ("write", "writev", "pwrite64", "pwritev", "pwritev2"):
            return self._named(call)
        if call.name != "close" and (found := self._open.get(call.number(0))) is not None:
            return self._written(call, found)
        return None

    def _begin(self, call: Call) -> None:
        """What counts from the beginning of a call on, or up to it."""
        if call.name == "close":
            self._open.pop(call.number(0), None)
        elif call.name in ("fsync", "fdatasync") and call.number(0) in self._open:
            self._syncing[call.pid] = len(self._open[call.number(0)].what.pending)

    def _find(self, path: bytes) -> tuple[Folder, bytes] | None:
        """The folder that a path leads to, and the name in it; None outside."""
        if not path.startswith(self._root + b"/"):
            return None
        *above, name = path.removeprefix(self._root + b"/").rstrip(b"/").split(b"/")
        folder = self.top
        for part in above:
            folder = folder.names[part]
        return folder, name

    def _opened(self, call: Call) -> Folder | None:
        (path,) = call.texts
        self._open.pop(call.result, None)
        if path == self._root:
            self._open[call.result] = _Open(self.top, False)
        place = self._find(path)
        if place is None:
            return None
        folder, name = place
        what = folder.names.get(name)
        if what is None:
            what = File()
            folder.pending.append(("name", name, what))
        if "O_TRUNC" in call.text or call.name == "creat":
            what.pending.append(("size", 0, None))
        self._open[call.result] = _Open(what, "O_APPEND" in call.text)
        return folder if "O_CREAT" in call.text else None

    def _named(self, call: Call) -> File | Folder | None:
        places = [self._find(path) for path in call.texts]
        if None in places:
            assert not any(places), call  # from outside to inside, or back
            return None
        folder, name = places[0]
        if call.name in ("mkdir", "mkdirat"):
            folder.pending.append(("name", name, Folder()))
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            folder.pending.append(("gone", name, None))
        elif call.name.startswith("rename"):
            assert places[1][0] is folder, call
            folder.pending.append(("renamed", (name, places[1][1]), folder.names[name]))
        elif call.name == "truncate":
            folder.names[name].pending.append(("size", int(call.text.split(", ")[1]), None))
        else:
            raise NotImplementedError(call)
        return folder

    def _written(self, call: Call, file: _Open) -> File | None:
        content = b"".join(call.texts)[: call.result]
        if call.name == "lseek":
            file.at = call.result
            return None
        if call.name in ("write", "writev"):
            at = len(file.what.content) if file.appends else file.at
            file.what.pending.append(("write", at, content))
            file.at = at + len(content)
        elif call.name in ("pwrite64", "pwritev"):
            at = int(call.text.rstrip(")").rpartition(", ")[2])
            file.what.pending.append(("write", at, content))
        elif call.name == "ftruncate":
            file.what.pending.append(("size", call.number(1), None))
        elif call.name == "fallocate":
            assert call.number(1) == 0, call
            size = max(len(file.what.content), call.number(2) + call.number(3))
            file.what.pending.append(("size", size, None))
        else:
            raise NotImplementedError(call)
        return file.what


def put(folder: Folder, place: Path, draw: Random | None = None) -> None:
    """Make the files that a loss of power leaves; without ``draw``, that a kill does."""
    place.mkdir()
    for name, what in (folder.names if draw is None else folder.left(draw)).items():
        path = place / os.fsdecode(name)
        if isinstance(what, Folder):
            put(what, path, draw)
        else:
            path.write_bytes(what.content if draw is None else what.left(draw))
