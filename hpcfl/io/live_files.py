"""Notice that a file or folder of a live run was deleted, replaced or changed.

An open file outlives its name.  A run that writes on into files without names ends without an
error, and its checkpoints point at nothing.  So whoever holds a file open compares it with what its
name leads to before a checkpoint is committed.
"""

import os
import stat
from pathlib import Path
from typing import Self

from hpcfl.errors import LostFileError


class HeldPath:
    """A file that no longer changes, or a folder, that is kept open.

    Open, so that its inode's number cannot be given to another.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd
        self._version = _version(os.fstat(fd))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Hold what is at ``path``, for reading.

        Raises:
            LostFileError: it is not there.
        """
        try:
            return cls(path, os.open(path, os.O_RDONLY))
        except OSError as e:
            raise lost(path, f"cannot be opened ({e.strerror})") from e

    def check(self) -> None:
        """Compare the name with what is held.

        Raises:
            LostFileError: it was deleted, replaced or written to.
        """
        check_in_place(self._path, self._fd)
        if _version(os.fstat(self._fd)) != self._version:
            raise lost(self._path, "was changed")

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


def _version(found: os.stat_result) -> tuple[int, int] | None:
    """What changes when a file is written to; None of a folder, in which files come and go."""
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def check_in_place(path: Path, fd: int, size: int | None = None) -> None:
    """Refuse to go on where ``path`` no longer leads to the file or folder that ``fd`` is.

    Args:
        path: its name.
        fd: the same, open.
        size: the bytes that it must have, if they are known.

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


def lost(path: Path, what: str) -> LostFileError:
    """The error that says so."""
    return LostFileError(
        f"{path}: {what} while the run was alive, so no checkpoint was committed; put it back and "
        "resume from the last checkpoint, or run the job again into another directory"
    )
