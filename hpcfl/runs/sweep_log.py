"""Write and read sweep.log: a line for each event of a sweep, with a checksum."""

import fcntl
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, NamedTuple

from hpcfl.errors import JobError, StoreError, file_error, one_line
from hpcfl.io import checksum, regular
from hpcfl.io.atomic import write_errors
from hpcfl.io.files import READABLE, present, read_bytes, readable
from hpcfl.io.lock import lock
from hpcfl.io.progress import until_unread
from hpcfl.io.version import __version__
from hpcfl.runs.names import FILE, SWEEP_LOG, require_kind

_TIME = "%Y-%m-%d %H:%M:%S"
_BEGUN = "begun    sweep: by hpcfl "
_EVENT = re.compile(r"[\d-]{10} [\d:]{8} (\w+) +([^ :]+): (.*)")
_STARTS = re.compile(rb"[\d-]{10} [\d:]{8} ")
PLACE = "# place in the sweep: "
"""Begins the job file of a run of a sweep, beside its directory; the number follows."""
PLOT_MARK = {"Software": "hpcfl"}
"""A text in every PNG, which names matplotlib otherwise."""
_LABELS = "# labels: "
"""Begins its second line: the labels in the grid, each with the keys that it sets, as JSON."""
_PLAN = re.compile(r"(\d+) runs to do, (\d+) finished before")


class SweepLog:
    """Writes the events of a sweep to its sweep.log, and prints them.

    Args:
        root: the directory of the sweep's runs.
        stream: where they are printed; None: standard error.

    Raises:
        StoreError: the end of the file is damaged, or another version of hpcfl wrote it.
        DiskError: the disk is full or fails.
    """

    def __init__(self, root: Path, stream: IO[str] | None = None) -> None:
        self._path = root / SWEEP_LOG
        self._stream = until_unread(sys.stderr if stream is None else stream)
        with self._opened() as file:
            begun = regular.read(self._path)
            first = log_line(f"{time.strftime(_TIME)} {_BEGUN}{__version__}")
            file.write(_completion(self._path, begun) if begun else first)

    def write(self, event: str, run: str, text: str) -> None:
        """Append an event and print it: "12:30:01 finished fedcm-seed1: 60 rounds".

        Raises:
            DiskError: the disk is full or fails.
        """
        line = one_line(f"{event:<8} {run}: {text}")
        with self._opened() as file:
            file.write(log_line(f"{time.strftime(_TIME)} {line}"))
        self._stream.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        self._stream.flush()

    @contextmanager
    def _opened(self) -> Iterator[FileIO]:
        """Open the file to append to it; other parts of the sweep do so too, on other hosts.

        It is opened for each line, locked where the file system has locks: NFS otherwise appends
        at the end that this host remembers, over the lines of others.  Not through a buffer: a line
        is one write.

        Raises:
            DiskError: the disk is full or fails.
        """
        with write_errors(self._path), regular.open_append(self._path) as file:
            lock(file.fileno(), fcntl.LOCK_EX)
            yield file


class SweepEvents(NamedTuple):
    """The number of runs of a sweep, and those that failed."""

    points: int
    """Runs of the sweep, or of the largest part of it if parts were run separately."""
    failed: Mapping[str, str]
    """The reasons, by the names of the runs whose last event is a failure."""


def read_sweep_log(root: Path) -> SweepEvents | None:
    """Read the sweep.log in a directory; None if there is none.

    Raises:
        StoreError: it cannot be read, or a line is damaged.
        DiskError: the disk fails.
    """
    path = root / SWEEP_LOG
    try:
        content = regular.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror}; {READABLE}"
        raise file_error(e, message, StoreError) from e
    points, failed = 0, dict[str, str]()
    for line in _lines(path, content):
        found = _EVENT.fullmatch(line)
        if not found:
            continue
        event, name, text = found.groups()
        failed.pop(name, None)
        if event == "failed":
            failed[name] = text
        elif event == "plan" and (plan := _PLAN.match(text)):
            points = max(points, int(plan[1]) + int(plan[2]))
    return SweepEvents(points, failed)


def was_begun_before(root: Path) -> bool:
    """Whether an earlier version of hpcfl began a sweep's log; its files beside runs have no marks.

    Raises:
        JobError: there is another file of this name.
        StoreError: it cannot be read, or has no checksums, as those of still earlier versions.
        DiskError: the disk fails.
    """
    path = root / SWEEP_LOG
    try:
        content = read_bytes(path, READABLE)
    except FileNotFoundError:
        return False
    first, end, _ = content.partition(b"\n")
    _require_version(path, content.split(b"\n"))
    # A loss of power may have cut the first line, or left zeros.
    torn = not end and (_STARTS.match(first) or not first.strip(b"\0"))
    if not (torn or checksum.is_checked_line(first)):
        raise JobError(
            f"{path}: its first line is none of the log of a sweep, so it is another program's "
            "file; move it elsewhere, or choose another directory with --out"
        )
    return bool(content) and _BEGUN.encode() not in first


def require_own_plot(path: Path) -> None:
    """Refuse a file for a plot, whose name the user did not give, that is not hpcfl's to replace.

    There may be none.

    Raises:
        JobError: it is a link, no file, or no plot that hpcfl has drawn.
        StoreError: it cannot be read.
    """
    require_kind(path, FILE, of="report")
    if present(path) and not was_begun_before(path.parent):
        with readable(path), regular.open_binary(path) as file:
            head = file.read(1000)
        if not all(f"tEXt{key}\0{text}".encode() in head for key, text in PLOT_MARK.items()):
            raise JobError(
                f"{path}: is no plot that hpcfl has drawn, and would be replaced; move it "
                "elsewhere, or name another with `hpcfl report DIR --plot FILE`"
            )


def log_line(text: str) -> bytes:
    """The line of sweep.log for an event."""
    return checksum.add_to_line(one_line(text).encode()) + b"\n"


def _completion(path: Path, content: bytes) -> bytes:
    """The bytes that complete a last line which a kill left incomplete; none if it is complete.

    The line is completed, not removed: another part of the sweep may be appending to the file.

    Raises:
        StoreError: the end is damaged, or another version of hpcfl wrote the file.
    """
    *lines, tail = content.split(b"\n")
    _require_version(path, lines)
    if not tail:
        return b""
    _require_prefix(f"{path}:{len(lines) + 1}", tail)
    return checksum.add_to_line(tail + b" (cut off)")[len(tail) :] + b"\n"


def _lines(path: Path, content: bytes) -> Iterator[str]:
    """The complete lines, their checksums compared; a last one without a line break is ignored."""
    *lines, tail = content.split(b"\n")
    _require_version(path, lines)
    for number, line in enumerate(lines, 1):
        try:
            text = checksum.remove_from_line(line)
        except ValueError as e:
            raise StoreError(
                f"{path}:{number}: {e} where an event of the sweep was expected; remove the line"
            ) from e
        yield text.decode(errors="replace")
    _require_prefix(f"{path}:{len(lines) + 1}", tail)


def _require_version(path: Path, lines: Sequence[bytes]) -> None:
    """Refuse a file of events without any checksum, as earlier versions wrote it."""
    if any(checksum.is_checked_line(line) for line in lines):
        return
    if any(_EVENT.fullmatch(line.decode(errors="replace")) for line in lines):
        raise StoreError(
            f"{path}: none of its lines ends with a checksum, expected one in each: another "
            "version of hpcfl wrote it; remove the file, the runs themselves stay"
        )


def _require_prefix(where: str, tail: bytes) -> None:
    """Refuse bytes after the last line break that cannot be the beginning of a line."""
    if not checksum.is_line_prefix(tail):
        raise StoreError(f"{where}: its end is damaged, expected a line break; remove the line")


class Label(NamedTuple):
    """The choice of a run on one axis of the grid of its sweep."""

    name: str
    keys: tuple[str, ...]
    """Those of the job that it sets, dotted."""


class PlaceInSweep(NamedTuple):
    """Where a run stands in the grid of its sweep."""

    number: float
    """Counted from 0; infinite where it is not known."""
    labels: tuple[Label, ...] = ()
    """One for each axis; none where they are not known."""

    def head(self) -> str:
        """The first lines of the run's job file: comments."""
        return f"{PLACE}{self.number:.0f}\n{_LABELS}{json.dumps(self.labels)}\n"


def place_in_sweep(folder: Path) -> PlaceInSweep:
    """Read the place of a run in the grid of its sweep from its job file.

    Args:
        folder: the run directory.
    """
    try:
        with regular.open_binary(folder.with_name(f"{folder.name}.yaml")) as file:
            first, second = (file.readline().decode(errors="replace").strip() for _ in range(2))
    except OSError:
        return PlaceInSweep(math.inf)
    number = first.removeprefix(PLACE)
    if not number.isdigit():
        return PlaceInSweep(math.inf)
    # An earlier version of hpcfl wrote no labels.
    found = second.startswith(_LABELS)
    with suppress(ValueError, TypeError):  # edited by hand
        read = json.loads(second.removeprefix(_LABELS)) if found else []
        labels = tuple(Label(str(name), tuple(map(str, keys))) for name, keys in read)
        return PlaceInSweep(int(number), labels)
    return PlaceInSweep(int(number))
