"""Download and check archives of a data set's publisher, and extract the members in use."""

import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path
from re import Pattern
from shutil import copyfileobj, rmtree
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile
from zlib import error as ZlibError

from hpcfl.data.download import PublishedFile, Track, provide
from hpcfl.errors import DataError, disk_errors
from hpcfl.io.files import read_error
from hpcfl.io.lock import locked
from hpcfl.io.regular import check_regular, open_write

_DAMAGED = (
    ArithmeticError,
    BadZipFile,
    EOFError,
    LookupError,
    LZMAError,
    OSError,
    RuntimeError,
    ValueError,
    ZlibError,
    struct.error,
)


@dataclass(frozen=True, kw_only=True)
class Archive(PublishedFile):
    """A tar or zip file as it is published."""

    members: Mapping[str, str]
    """The names of members in use, and their paths below the data set's root."""

    def unpacked(self, root: Path) -> bool:
        """Whether every member in use is in ``root``."""
        return all((root / place).exists() for place in self.members.values())


def provide_members(root: Path, archive: Archive, track: Track) -> None:
    """Make sure that the members in use are in ``root``; download the archive if one is missing.

    The archive is checked before it is unpacked, also where it was put there by hand, and stays.
    Nothing but the wanted members is written, each under the name given here and whole or not at
    all, whatever the archive holds.

    Raises:
        DataError: the archive cannot be had, which says where it belongs; or it is not the
            published one, or lacks a member.
        DiskError: the disk is full or fails.
    """
    if archive.unpacked(root):
        return
    provide(root, [archive], track)
    path = root / archive.name
    with locked(path):
        missing = {n: root / p for n, p in archive.members.items() if not (root / p).exists()}
        _unpack(path, lambda name: missing.pop(name, None), track)
    if missing:
        raise DataError(f"{path}: holds no file {', '.join(missing)}")


def provide_folder(
    root: Path, archive: PublishedFile, folder: str, wanted: Pattern[str], track: Track
) -> None:
    """Extract a folder from an archive, which is downloaded if it is missing.

    Args:
        root: of the data set.
        archive: the tar or zip file.
        folder: of the archive; of that name it becomes in ``root``, once it is whole.
        wanted: which names below it are written.
        track: shows progress.

    Raises:
        DataError: likewise; or the folder is there already.
        DiskError: the disk is full or fails.
    """
    provide(root, [archive], track)
    path, made = root / archive.name, root / folder
    part = made.with_name(made.name + ".part")
    rmtree(part, ignore_errors=True)

    def place(name: str) -> Path | None:
        top, _, inner = name.partition("/")
        return part / inner if top == folder and wanted.fullmatch(inner) else None

    _unpack(path, place, track)
    if not part.exists():
        raise DataError(f"{path}: holds none of the files of {folder}/ that are wanted")
    try:
        with disk_errors():
            part.rename(made)
    except OSError as error:
        raise DataError(f"{made}: cannot be replaced: {error.strerror}; remove it") from error


def _unpack(path: Path, place: Callable[[str], Path | None], track: Track) -> None:
    """Write every member in use to its path.

    Raises:
        DataError: the archive is damaged.
        DiskError: the disk is full or fails.
    """
    try:
        with _opened(path) as members:
            for name, content in track(members, f"unpacking {path.name}"):
                to = place(name)
                if to is not None:
                    _write(to, content)
    except (*_DAMAGED, tarfile.TarError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        message = f"{path}: cannot be unpacked: {reason}"
        raise read_error(error, message, DataError) from error


Content = Callable[[], Any]  # opens a member for reading


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[tuple[str, Content]]]:
    """The regular files of an archive, in its order: names, and functions that open them."""
    check_regular(path)
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
    """A member's name without the prefix "./" of some archives."""
    return name.removeprefix("./")


def _write(path: Path, content: Content) -> None:
    """Write PATH.part, which is renamed to PATH when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with content() as source, open_write(part) as out:
        copyfileobj(source, out)
    part.replace(path)
