"""Write a new HDF5 file on a disk that may be full."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py

from hpcfl.io import regular

METADATA = 2**20  # bytes, an upper bound: HDF5 needs a few KiB per file
_END_OF_FILE = slice(28, 36)  # in the superblock of version 2, which h5py writes here


@contextmanager
def new_hdf5(path: Path, room: int) -> Iterator[Any]:
    """A new HDF5 file, on the disk and closed after the block; incomplete where the block fails.

    HDF5 ends in a segmentation fault where a write finds the disk full, so all that it will write
    is reserved first.  An existing file is replaced.

    Args:
        path: the file.
        room: bytes of all its arrays, at most.

    Raises:
        OSError: the disk is too small or fails, or the file cannot be made.
    """
    path.unlink(missing_ok=True)  # not through a link, and not into the file of another name
    file = h5py.File(path, "w", libver=("v108", "v108"), locking=False)
    _reserve(file, METADATA + room)
    try:
        with file:
            yield file
    except RuntimeError as error:  # h5py raises it for some failures of the disk
        found = re.search(r"errno = (\d+)", str(error))
        if not found:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
    with os.fdopen(regular.open_fd(path, os.O_RDWR, follow=False), "r+b") as raw:
        raw.truncate(int.from_bytes(raw.read(64)[_END_OF_FILE], "little"))
        # Its datasets that were allocated but not written would leave the file sparse.
        os.posix_fallocate(raw.fileno(), 0, path.stat().st_size)
        os.fsync(raw.fileno())


def _reserve(file: Any, size: int) -> None:
    """Reserve the first ``size`` bytes of a file, or close it.

    Raises:
        OSError: the disk is too small or fails.
    """
    descriptor = file.id.get_vfd_handle()
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        # What HDF5 writes when it closes the file goes into memory, where there is room.
        memory = os.memfd_create("discarded")
        os.dup2(memory, descriptor)
        os.close(memory)
        with suppress(RuntimeError):  # a limit on the size of files holds in memory, too
            file.close()
        raise
