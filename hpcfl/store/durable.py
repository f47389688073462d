"""Files that are complete and on the disk, or not there at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcfl.errors import StoreError, file_error

PART = ".part"  # ends the name of a file that is not complete yet
STANDS = "the last checkpoint stands: make room or repair the disk, then resume"  # of a run's files


def sync_folder(folder: Path) -> None:
    """Make renames and new names in ``folder`` survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, content: bytes, *, advice: str = "make room or repair the disk") -> None:
    """Write a file under a temporary name, fsync it and rename it into place.

    Args:
        path: its final name.
        content: all of it.
        advice: what a person can do when it fails: the end of the error's message.

    Raises:
        DiskError: the disk is full or fails; nothing is left behind.
        StoreError: the file may not be written there; nothing is left behind.
    """
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        discard(part)
        message = f"{path}: cannot write {len(content)} bytes: {error.strerror}; {advice}"
        raise file_error(error, message, StoreError) from error


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn a failure of the disk under ``path``, in a run, into one line.

    Raises:
        DiskError: the block raised OSError because the disk is full or fails.
        StoreError: the block raised another OSError.
    """
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror}; {STANDS}"
        raise file_error(error, message, StoreError) from error


def discard(part: Path) -> None:
    """Remove what a failed write left, as far as the disk lets us: its error is told already."""
    with suppress(OSError):
        part.unlink(missing_ok=True)
