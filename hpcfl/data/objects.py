"""Examples that a caller of ``hpcfl.run`` has in memory, and the file in which a run keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.sources.arrays import Arrays
from hpcfl.errors import DataError
from hpcfl.user_code.names import DIGITS

_TRIED = 64  # items that are read twice, spread over the data set


@dataclass(frozen=True, eq=False)
class Data:
    """Examples for ``hpcfl.run``, in arrays or torch data sets.

    A part is ``(x, y)``, two arrays, tensors or sequences of as many rows, or a map-style data set
    of torch whose items are such pairs.  Inputs x [n, ...] are numbers, images as [n, C, H, W];
    integers in y [n] are classes from 0 (cross-entropy), floats are targets (mean of r^2 / 2).  The
    run keeps the examples as they are now.  A data set that draws from Python's, numpy's or torch's
    global generator as it is read, such as for augmentation, is refused, and so is one of which 64
    items, spread over it, are not the same when they are read again.
    """

    train: Any
    """The training examples."""
    test: Any = None
    """The test examples, if there are any."""
    owners: Any = None
    """The owner of each training example, an integer or a string.  Client k is the k-th of the
    sorted owners.  Without them the job's ``data.partition`` divides the examples."""
    classes: int | None = None
    """How many classes there are, where the largest label does not tell."""
    integers: bool = False
    """Whether the model gets x as int64, such as numbers of words, for an embedding.  Lists of
    integers in x may then be of unequal length: 0 fills them up at their ends, to the longest of
    train and test, so none may hold a 0, and ``x != 0`` is the mask."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the file, checked.

        Raises:
            DataError, JobError: they are not what data of a run can be.
        """
        pairs = {"": _pair(self.train, "train", self.integers)}
        if self.test is not None:
            pairs["_test"] = _pair(self.test, "test", self.integers)
        longest = max((_longest(x) for x, _ in pairs.values()), default=0)
        found: dict[str, NDArray[Any]] = {}
        for part, (x, y) in pairs.items():
            found[f"x{part}"] = _padded(x, longest, "test" if part else "train")
            found[f"y{part}"] = y
        if self.owners is not None:
            owners = _array(self.owners, "owners")
            if owners.dtype.kind in ("O", "T") and all(isinstance(n, str) for n in owners.flat):
                owners = np.array(owners.tolist())  # as pandas has them
            if owners.shape != found["y"].shape[:1] or owners.dtype.kind not in "iuUS":
                raise DataError(
                    f"data: owners is {owners.dtype} of shape {owners.shape}, expected integers or "
                    f"strings of shape ({len(found['y'])},): the owner of each training example"
                )
            found["client"] = np.unique(owners, return_inverse=True)[1].astype(np.int64)
        checked = Arrays(path="data", classes=self.classes, integers=self.integers)
        checked.dataset(Path("data"), found)
        return found


@dataclass(frozen=True, kw_only=True)
class KeptArrays(Arrays):
    """Examples that were passed to ``hpcfl.run``, in a file of the run directory."""


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """The sha256 of arrays: of their names, types, shapes and values."""
    found = sha256()
    for name, array in sorted(arrays.items()):
        found.update(repr((name, array.dtype.str, array.shape)).encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:DIGITS]


def write_arrays(arrays: Mapping[str, NDArray[Any]], file: BinaryIO) -> None:
    """Write the .npz into an open file."""
    np.savez(file, allow_pickle=False, **arrays)


def _pair(
    part: Any, name: str, integers: bool
) -> tuple[NDArray[Any] | list[NDArray[Any]], NDArray[Any]]:
    """Inputs and labels of (x, y) or of a data set; integers [n, ...], or n lists of them."""
    if isinstance(part, tuple | list) and len(part) == 2:
        x, y = part
        if integers and isinstance(x, tuple | list):
            return [_array(row, f"{name}, x") for row in x], _array(y, f"{name}, y")
        return _array(x, f"{name}, x"), _array(y, f"{name}, y")
    if not (hasattr(part, "__getitem__") and hasattr(part, "__len__")) or hasattr(part, "dtype"):
        raise DataError(
            f"data: {name} is a {type(part).__name__}, expected (x, y) or a map-style data set of "
            "torch, with a length and items (x, y)"
        )
    items = [_item(part, index, name) for index in range(len(part))]
    if not items:
        raise DataError(f"data: {name} has no example")
    for index in np.linspace(0, len(items) - 1, min(_TRIED, len(items))).astype(int).tolist():
        if any(map(_differ, items[index], _item(part, index, name))):
            raise DataError(
                f"data: {name}: item {index} is another one each time; hpcfl.run keeps examples as "
                "they are: pass a data set that draws nothing at random (no augmentation)"
            )
    x, y = zip(*items, strict=True)
    if integers:
        return list(x), _array(y, f"{name}, y")
    shapes = sorted({np.shape(row) for row in x})
    if len(shapes) > 1:
        raise DataError(
            f"data: {name} has inputs of shapes {shapes[0]} and {shapes[1]}, expected one shape"
        )
    return np.stack(x), _array(y, f"{name}, y")


def _longest(x: NDArray[Any] | list[NDArray[Any]]) -> int:
    """The length of the longest list of integers, or of each row of one array."""
    return max(map(np.size, x), default=0) if isinstance(x, list) else x[:1].size


def _padded(x: NDArray[Any] | list[NDArray[Any]], longest: int, name: str) -> NDArray[Any]:
    """One array of x: lists of integers are filled up by 0 at their ends."""
    if not isinstance(x, list):
        return x
    if len({row.shape for row in x} | {(longest,)}) == 1 or any(row.ndim != 1 for row in x):
        return _array(x, f"{name}, x")  # as it is; what is no array is refused
    padded = np.zeros((len(x), longest), np.int64)
    for number, row in enumerate(x):
        where = f"data: {name}, x: list {number}"
        if not row.size or row.dtype.kind not in "iu":
            raise DataError(f"{where} is {row.tolist()!s:.60}, expected at least one integer")
        if not row.all():
            raise DataError(
                f"{where} holds 0, which fills up lists of unequal length; count from 1, as "
                "[[k + 1 for k in row] for row in x]"
            )
        padded[number, : row.size] = row
    return padded


def _item(part: Any, index: int, name: str) -> tuple[NDArray[Any], Any]:
    item = part[index]
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise DataError(
            f"data: item {index} of {name} is a {type(item).__name__}, expected a pair (x, y)"
        )
    x, y = item
    return _array(x, f"{name}, x"), np.asarray(y).item() if np.size(y) == 1 else y


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """An array that torch takes: in this machine's byte order, without gaps, writable."""
    if array.dtype.kind not in "biuf":
        return array
    return np.require(array.astype(array.dtype.newbyteorder("="), copy=False), None, ["C", "W"])


def _differ(first: Any, second: Any) -> bool:
    """Whether two readings of an input or of a label differ; a NaN is refused elsewhere."""
    one, other = np.asarray(first), np.asarray(second)
    return not np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")


def _array(values: Any, name: str) -> NDArray[Any]:
    """The values in an array of numpy's."""
    try:
        if hasattr(values, "detach"):  # a tensor, perhaps on a GPU
            values = values.detach().cpu()
        return _native(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as e:
        ragged = isinstance(values, list | tuple) and name.endswith(", x")
        cure = "; lists of integers of unequal length need integers=True" if ragged else ""
        raise DataError(
            f"data: {name}: a {type(values).__name__} is no array of numbers: {e}{cure}"
        ) from e
