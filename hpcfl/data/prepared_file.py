"""Write the files that ``hpcfl data prepare`` makes: under another name, renamed when complete.

A kill thus leaves either the whole file or none of its name.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcfl.errors import DataError, DiskError, file_error


@contextmanager
def new_image_file(path: Path, part: Path, origin: str, **attributes: int) -> Iterator[Any]:
    """A new HDF5 file of packed images, written as ``part``; named ``path`` where the block ends.

    Args:
        path: the file.
        part: its name until it is complete.
        origin: identifies the images that it is made from, see ``ListedFiles``.
        attributes: its format and numbers that a reader checks.
    """
    with h5py.File(part, "w", libver=("v108", "v108"), locking=False) as file:
        file.attrs.update(**attributes, origin=np.bytes_(origin.encode()))
        yield file
    commit(part, path)


@contextmanager
def preparing(path: Path) -> Iterator[None]:
    """Convert errors of the system inside the block into one about ``path``.

    Raises:
        DataError: the block raised OSError, and not because of the disk.
        DiskError: the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        raise file_error(error, f"{path}: cannot be made: {error}", DataError) from error
    except RuntimeError as error:  # h5py's close raises it on a full disk
        if "errno = " not in str(error):  # not from an operation of the system
            raise
        raise DiskError(f"{path}: cannot be made: {' '.join(str(error).split())}") from error


def commit(part: Path, path: Path) -> None:
    """Rename a closed file to ``path``, after its contents have reached the disk."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
