"""Check the heaps of an HDF5 file before HDF5 reads them: damaged ones make it loop or crash.

Texts of any length lie in "global heaps", which have no checksum.  HDF5 walks through a heap from
object to object, each of which tells its size, and believes it: a size of 0 is a loop without end,
a large one leads out of the heap.  So every heap of the file is walked through here first.

The rest of HDF5's own structures is left to HDF5, which has checks for them: of thousands of files
with damage in random places none but those with a damaged heap made it hang or crash.  Against a
file that was made with intent to break HDF5 itself only a digest of the publisher's helps.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DataError
from hpcfl.io.regular import open_binary
from hpcfl.types import IntArray

_SIGNATURE = b"GCOL\x01"
_HEADER, _LEAST = 16, 4096  # bytes of a heap's, or an object's, header; of the smallest heap
_MOST = 1 << 16  # objects of a heap, which number them with 16 bits
_BLOCK = 1 << 24  # bytes searched at a time


def check_heaps(path: Path) -> None:
    """Check all global heaps of a file, once while it does not change.

    Raises:
        DataError: one of them is damaged.
    """
    found = path.stat()
    _check(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=8)
def _check(path: Path, size: int, changed: int) -> None:
    if size < _HEADER:
        return
    with open_binary(path) as file:
        content = np.memmap(file, np.uint8, "r")
    for begin in range(0, size, _BLOCK):
        block = content[begin : begin + _BLOCK + len(_SIGNATURE) - 1].tobytes()
        starts, at = [], block.find(_SIGNATURE)
        while at >= 0:
            starts.append(begin + at)
            at = block.find(_SIGNATURE, at + 1)
        _walk(path, content, np.array(starts, np.int64))


def _walk(path: Path, content: NDArray[np.uint8], heaps: IntArray) -> None:
    """Check the heaps at these offsets, all at once."""
    heaps = heaps[heaps + _HEADER <= len(content)]
    ends = heaps + _sizes(content, heaps)
    # HDF5 refuses a heap that is too small or ends behind the file.
    sound = (ends >= heaps + _LEAST) & (ends <= len(content))
    heaps, ends = heaps[sound], ends[sound]
    at = heaps + _HEADER
    for _ in range(_MOST):
        inside = at + _HEADER <= ends  # what is left behind the last header is unused
        heaps, at, ends = heaps[inside], at[inside], ends[inside]
        if not len(at):
            return
        size = _sizes(content, at)
        free = (content[at] == 0) & (content[at + 1] == 0)  # whose size counts its header
        need = np.where(free, size, _HEADER + (size + 7) // 8 * 8)
        wrong = (size < 0) | (need < _HEADER) | (need > ends - at)
        if wrong.any():
            heaps = heaps[wrong]
            break
        at = at + need
    raise DataError(f"{path}: the texts at byte {heaps[0]} are damaged")


def _sizes(content: NDArray[np.uint8], places: IntArray) -> IntArray:
    """The sizes in the last 8 bytes of each header; -1 for sizes larger than any file."""
    raw = content[places[:, None] + np.arange(8, 16)].view("<i8")[:, 0]
    return np.where((raw < 0) | (raw > 1 << 62), -1, raw)
