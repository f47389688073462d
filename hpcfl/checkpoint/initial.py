"""Write and read initial.npy: the model before round 1, as a flat vector."""

import io
from pathlib import Path
from zlib import crc32

import torch
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0

from hpcfl.errors import DataError, StoreError
from hpcfl.io.atomic import write_parts
from hpcfl.io.files import read_array
from hpcfl.io.tensor_file import bytes_of, on_cpu
from hpcfl.types import Vector


def write(path: Path, x0: Vector) -> int:
    """Write the initial model [P].

    Returns:
        The crc32 of the file, for the manifests.

    Raises:
        DiskError: the disk is full or fails.
    """
    own, header = on_cpu(x0), io.BytesIO()
    write_array_header_1_0(header, header_data_from_array_1_0(own.numpy()))
    parts = [memoryview(header.getvalue()), bytes_of(own)]  # as np.save writes them
    write_parts(path, parts)
    return crc32(parts[1], crc32(parts[0]))


def read(path: Path, content: bytes, like: Vector | None = None) -> Vector:
    """Read the initial model [P], to the CPU.

    Args:
        path: of the file, for messages.
        content: of the file.
        like: whose shape and dtype it must have, if given.

    Raises:
        StoreError: it is damaged, or of another model.
    """
    try:
        x0 = torch.from_numpy(read_array(path, content=content))
    except (DataError, TypeError) as e:  # torch raises TypeError for a dtype it does not have
        raise StoreError(f"{path}: cannot be read: {e}") from e
    if like is not None and (x0.shape, x0.dtype) != (like.shape, like.dtype):
        raise StoreError(
            f"{path}: found {tuple(x0.shape)} {x0.dtype}, expected "
            f"{tuple(like.shape)} {like.dtype} of the model with the data and code as they are "
            "now; put back the run's data and code"
        )
    return x0
