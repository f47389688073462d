"""Archives that a data set's owners publish: fetched, checked, and the wanted members taken out."""

import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path
from shutil import copyfileobj
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile
from zlib import error as ZlibError

from hpcfl.data.owners import Published, Track, provide
from hpcfl.errors import DataError

_DAMAGED = (BadZipFile, EOFError, LZMAError, NotImplementedError, OSError, RuntimeError, ZlibError)


@dataclass(frozen=True, kw_only=True)
class Archive(Published):
    """A tar or zip file as its owners publish it."""

    members: Mapping[str, str]
    """The names of the wanted members in it, and their paths below the data set's root."""

    def unpacked(self, root: Path) -> bool:
        """Whether every wanted member lies in ``root``."""
        return all((root / place).exists() for place in self.members.values())


def provide_members(root: Path, archive: Archive, track: Track) -> None:
    """Make sure that the wanted members lie in ``root``; fetch the archive where it is needed.

    The archive is checked before it is unpacked, also where it was put there by hand, and stays.
    Nothing but the wanted members is written, each under the name given here and whole or not at
    all, whatever the archive holds.

    Raises:
        DataError: the archive cannot be had, which says where it belongs; or it is not the owners',
            or lacks a member.
    """
    if archive.unpacked(root):
        return
    provide(root, [archive], track)
    path = root / archive.name
    archive.check(path, track)
    missing = {n: root / p for n, p in archive.members.items() if not (root / p).exists()}
    try:
        with _opened(path) as members:
            for name, content in track(members, f"unpacking {path.name}"):
                if name in missing:
                    _write(missing.pop(name), content)
    except (*_DAMAGED, tarfile.TarError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{path}: cannot be unpacked: {reason}") from error
    if missing:
        raise DataError(f"{path}: holds no file {', '.join(missing)}")


Content = Callable[[], Any]  # opens a member for reading


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[tuple[str, Content]]]:
    """The regular files of an archive, in its order: names, and what opens them."""
    if is_zipfile(path):
        with ZipFile(path) as bag:
            files = (info for info in bag.infolist() if not info.is_dir())
            yield ((_plain(info.filename), partial(bag.open, info)) for info in files)
    else:
        with tarfile.open(path) as tar:
            yield (
                (_plain(info.name), partial(tar.extractfile, info)) for info in tar if info.isreg()
            )


def _plain(name: str) -> str:
    """A member's name without the "./" that some archives put before it."""
    return name.removeprefix("./")


def _write(path: Path, content: Content) -> None:
    """Write PATH.part, which becomes PATH when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with content() as source, part.open("wb") as out:
        copyfileobj(source, out)
    part.replace(path)
