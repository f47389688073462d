"""Reading pickles of numpy arrays and nothing else."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import DataError

_DAMAGED = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    TypeError,
    ValueError,
)


def _latin1(text: str, encoding: str) -> bytes:
    """What Python 3 writes for bytes in old protocols: an encoding by name, but only this one."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


# How numpy rebuilds an array, a scalar and a buffer, under the names of numpy 1 and numpy 2.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_SCALAR: Any = np.int64(0).__reduce__()[0]
_FROM_BUFFER: Any = np.empty(1).__reduce_ex__(5)[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _SCALAR for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in ("core", "_core")},
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that knows numpy's arrays and no other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """The named function, if it only rebuilds arrays."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it wants {module}.{name}, which is no array: not loaded"
            ) from None


def unpickle(path: Path) -> dict[str, Any]:
    """The dictionary that ``path`` holds; its values are arrays, lists, numbers or bytes.

    Raises:
        DataError: the file is missing or damaged, or holds anything that is not plain data.
    """
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except _DAMAGED as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{path}: not a readable data file: {reason}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, expected a dictionary")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value
        for key, value in content.items()
    }
