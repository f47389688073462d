"""Notice that a file or folder of a running run was deleted, replaced or changed.

A process can write to an open file after the file was deleted.  Such a run would end without an
error, while its checkpoints name files that no longer exist.  So before a checkpoint is committed,
each open file is compared with the file that its path leads to.
"""

import os
import stat
from pathlib import Path
from typing import Self

from hpcfl.errors import LostFileError


class HeldPath:
    """A folder, or a file that no longer changes, that is kept open.

    Open, because the system may give the inode number of a deleted file to a new one.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd
        self._version = _version(os.fstat(fd))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open ``path`` for reading, and keep it open.

        Raises:
            LostFileError: it cannot be opened.
        """
        try:
            return cls(path, os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as e:
            raise lost(path, f"cannot be opened ({e.strerror})") from e

    def check(self) -> None:
        """Compare the file at the path with the open one.

        Raises:
            LostFileError: it was deleted, replaced or written to.
        """
        check_in_place(self._path, self._fd)
        if _version(os.fstat(self._fd)) != self._version:
            raise lost(self._path, "was changed")

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


def _version(found: os.stat_result) -> tuple[int, int] | None:
    """Size and time of the last change of a file; None for a folder, whose content may change."""
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def check_in_place(path: Path, fd: int, size: int | None = None) -> None:
    """Raise unless ``path`` leads to the open file or folder ``fd``.

    Args:
        path: of the file.
        fd: its descriptor.
        size: the bytes that it must have, if known.

    Raises:
        LostFileError: it was deleted, replaced or cut.
    """
    try:
        named, held = path.stat(), os.fstat(fd)
    except FileNotFoundError as e:
        raise lost(path, "was deleted") from e
    except OSError as e:
        raise lost(path, f"cannot be found ({e.strerror})") from e
    if not os.path.samestat(named, held):
        raise lost(path, "was replaced by another")
    if size is not None and held.st_size != size:
        raise lost(path, f"has {held.st_size} bytes, expected {size}: it was changed")


def lost(path: Path, change: str) -> LostFileError:
    """Make the error for a file that was lost; ``change`` says how."""
    return LostFileError(
        f"{path}: {change} while the run was alive, so no checkpoint was committed; put it back "
        "and resume from the last checkpoint, or run the job again into another directory"
    )
