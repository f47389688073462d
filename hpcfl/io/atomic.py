"""Write files atomically: after a kill or a loss of power a file is complete, or not there."""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hpcfl.errors import StoreError, file_error

PART = ".part"  # ends the name of a file that is not complete yet
# The advice for files of a run, whose checkpoints are not harmed by the failure.
STANDS = "the last checkpoint stands: make room or repair the disk, then resume"


def sync_folder(folder: Path) -> None:
    """Fsync a folder: renames, new and deleted names in it survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; their names survive a loss of power.

    Raises:
        OSError: it cannot be made.
    """
    absent = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    path.mkdir(parents=True, exist_ok=True)
    for folder in absent:
        with suppress(PermissionError):  # to write there does not take permission to read
            sync_folder(folder.parent)


def write_file(
    path: Path,
    content: bytes,
    *,
    advice: str = "make room or repair the disk",
    mode: int | None = None,
) -> None:
    """Write a file under a temporary name, fsync it and rename it into place.

    Args:
        path: its final name.
        content: all of it.
        advice: what the user can do if it fails; ends the error's message.
        mode: the file's permissions; None: those of any new file.

    Raises:
        DiskError: the disk is full or fails; nothing is left behind.
        StoreError: the file may not be written there; nothing is left behind.
    """
    write_parts(path, [memoryview(content)], advice=advice, mode=mode)


def write_parts(
    path: Path,
    parts: Sequence[memoryview],
    *,
    advice: str = "make room or repair the disk",
    mode: int | None = None,
) -> None:
    """Like ``write_file``, of a content that lies in several places.

    Args:
        path: its final name.
        parts: the bytes of the content, one after the other.
        advice: see ``write_file``.
        mode: see ``write_file``.

    Raises:
        DiskError, StoreError: see ``write_file``.
    """
    size = f" {sum(map(len, parts))} bytes"
    write_by(path, lambda file: file.writelines(parts), size=size, advice=advice, mode=mode)


def write_by(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    size: str = "",
    advice: str = "make room or repair the disk",
    mode: int | None = None,
) -> None:
    """Like ``write_file``, by a function that writes the content into the open file.

    Args:
        path: its final name.
        write: writes the content.
        size: of the content, for the error's message.
        advice: see ``write_file``.
        mode: see ``write_file``.

    Raises:
        DiskError, StoreError: see ``write_file``.
        Exception: whatever ``write`` raises; nothing is left behind.
    """
    part = path.with_name(path.name + PART)
    try:
        with os.fdopen(_new(part), "wb") as file:
            if mode is not None and mode != stat.S_IMODE(os.fstat(file.fileno()).st_mode):
                # Before the content, which others may not be allowed to read.
                os.fchmod(file.fileno(), mode)
            write(file)
            file.flush()
            # Before the rename: some file systems write the rename to the disk before the content.
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        remove_part(part)
        message = f"{path}: cannot write{size}: {error.strerror}; {advice}"
        raise file_error(error, message, StoreError) from error
    except BaseException:  # Ctrl-C
        remove_part(part)
        raise


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in the block, about a run's file ``path``, into an error of one line.

    Raises:
        DiskError: the block raised OSError because the disk is full or fails.
        StoreError: the block raised another OSError.
    """
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror}; {STANDS}"
        raise file_error(error, message, StoreError) from error


def _new(part: Path) -> int:
    """Make an empty file; one that a kill left is removed, and a link is never followed.

    Raises:
        OSError: it cannot be made.
    """
    part.unlink(missing_ok=True)
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def remove_part(part: Path) -> None:
    """Remove the partial file of a failed write; failing here must not hide that error."""
    with suppress(OSError):
        part.unlink(missing_ok=True)
