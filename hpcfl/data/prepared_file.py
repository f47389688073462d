"""Write the files that ``hpcfl data prepare`` makes: under another name, renamed when complete.

A kill thus leaves either the whole file or none of its name.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import DataError, file_error
from hpcfl.io.atomic import remove_part, sync_folder
from hpcfl.io.new_hdf5 import new_hdf5
from hpcfl.io.regular import open_binary


@contextmanager
def new_image_file(
    path: Path, part: Path, origin: str, room: int, **attributes: int
) -> Iterator[Any]:
    """A new HDF5 file of packed images, written as ``part``; named ``path`` where the block ends.

    Args:
        path: the file.
        part: its name until it is complete.
        origin: identifies the images that it is made from, see ``ListedFiles``.
        room: bytes of all its arrays, at most.
        attributes: its format and numbers that a reader checks.
    """
    try:
        with new_hdf5(part, room) as file:
            file.attrs.update(**attributes, origin=np.bytes_(origin.encode()))
            yield file
        commit(part, path)
    except BaseException:  # it may take much room on the disk
        remove_part(part)
        raise


@contextmanager
def preparation_errors(path: Path) -> Iterator[None]:
    """Convert errors of the system inside the block into one about ``path``.

    Raises:
        DataError: the block raised OSError, and not because of the disk.
        DiskError: the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise file_error(error, f"{path}: cannot be made: {reason}", DataError) from error


def commit(part: Path, path: Path) -> None:
    """Rename a closed file to ``path``, after its contents have reached the disk.

    A loss of power then leaves the whole file, or none of this name.
    """
    with open_binary(part) as file:
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
