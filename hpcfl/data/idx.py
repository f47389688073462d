"""Read IDX files, in which MNIST and similar data sets are published."""

import gzip
from pathlib import Path
from zlib import error as ZlibError

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DataError
from hpcfl.io.files import read_error
from hpcfl.io.regular import open_binary

_BYTES = 0x08  # IDX's name of unsigned bytes
_MOST = 1 << 30  # bytes; the largest published file, of EMNIST, has half of it


def idx_place(path: Path) -> Path:
    """The IDX file, or if there is none, the same file with the suffix .gz."""
    return path if path.exists() else path.with_name(path.name + ".gz")


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The bytes [n, *shape] of an IDX file, or of the same file with the suffix .gz.

    Raises:
        DataError: there is neither, or it is damaged or of another type or shape.
    """
    place = idx_place(path)
    try:
        with open_binary(place) as raw, raw if place is path else gzip.open(raw) as file:
            content = file.read(_MOST)
    except (OSError, EOFError, ZlibError) as error:
        message = f"{place}: not a readable IDX file: {error}"
        raise read_error(error, message, DataError) from error
    dimensions = 1 + len(shape)
    begin = 4 + 4 * dimensions
    if len(content) < begin or content[:4] != bytes([0, 0, _BYTES, dimensions]):
        raise DataError(f"{place}: not an IDX file of bytes in {dimensions} dimensions")
    found = tuple(int(n) for n in np.frombuffer(content[4:begin], dtype=">u4"))
    size = int(np.prod(found, dtype=object))
    if found[1:] != shape or len(content) - begin != size:
        raise DataError(
            f"{place}: says it holds bytes of shape {found} and holds {len(content) - begin}; "
            f"expected {('n', *shape)} of them"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(found)
