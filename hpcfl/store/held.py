"""Files and folders of a live run: notice that one was deleted or replaced.

An open file outlives its name.  A run that writes on into files without names ends without an
error, and its checkpoints point at nothing.  So whoever holds a file open compares it with what its
name leads to before a checkpoint is committed.
"""

import os
from pathlib import Path
from typing import Self

from hpcfl.errors import LostFileError


class HeldPath:
    """A file or folder that is kept open: its inode's number cannot be given to another."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

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
            LostFileError: it was deleted or replaced.
        """
        check_in_place(self._path, self._fd)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


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
