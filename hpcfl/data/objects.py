"""Examples that a caller of ``hpcfl.run`` has in memory, and the file in which a run keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.labels import LabelType
from hpcfl.data.sources.arrays import Arrays
from hpcfl.errors import DataError
from hpcfl.user_code.names import DIGITS

_TRIED = 64  # items that are read twice, spread over the data set
_Input = NDArray[Any] | list[NDArray[Any]]  # [n, ...], or n lists of integers


@dataclass(frozen=True, eq=False)
class Data:
    """Examples for ``hpcfl.run``, in arrays or torch data sets.

    A part is ``(x, y)``, two arrays, tensors or sequences of as many rows, or a map-style data set
    of torch whose items are such pairs.  Inputs x [n, ...] are numbers, images as [n, C, H, W];
    integers in y [n] are classes from 0 (cross-entropy), and in y [n, T] several an example, such
    as tokens; floats [n] or [n, t] are targets (mean of the sum of r^2 / 2), booleans [n, t] bits
    (binary cross-entropy with logits).  A
    dict as x, such as ``{"ids": ids, "mask": mask}``, are several inputs: the model is called as
    ``model(ids=..., mask=...)``, with floats, integers (as int64) or booleans, as they are.  The
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
    integers in x, and in one of several inputs in any case, may then be of unequal length: 0 fills
    them up at their ends, to the longest of train and test, so none may hold a 0, and ``x != 0`` is
    the mask."""
    test_owners: Any = None
    """The owner of each test example, where the clients have tests of their own.  Those of an owner
    without training examples are in the whole test set alone."""
    label_type: LabelType | None = None
    """What y holds, ``"classes"``, ``"numbers"`` or ``"bits"``, where its type does not tell."""
    padding: int | None = None
    """The number in y [n, T] that is padding, a class or not, such as -100: it is left out of
    losses and scores.  Without it every label counts.  With it, y may hold lists of unequal length,
    which it fills up at their ends."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the file, checked.

        Raises:
            DataError, JobError: they are not what data of a run can be.
        """
        lists = self.padding is not None
        pairs = {"": _pair(self.train, "train", self.integers, lists)}
        if self.test is not None:
            pairs["_test"] = _pair(self.test, "test", self.integers, lists)
        found: dict[str, NDArray[Any]] = {}
        for part, (xs, y) in pairs.items():
            for name, x in xs.items():
                longest = max(_longest(of[name]) for of, _ in pairs.values() if name in of)
                where, key = _where("test" if part else "train", name), f".{name}" * bool(name)
                found[f"x{part}{key}"] = _padded(x, longest, where)
            longest = max(_longest(of) for _, of in pairs.values())
            name = f"{'test' if part else 'train'}, y"
            found[f"y{part}"] = _padded(y, longest, name, self.padding)
        if self.test_owners is not None and (self.owners is None or self.test is None):
            raise DataError("data: test_owners needs owners and test beside it")
        if self.owners is not None:
            owners = _owners(self.owners, "owners", found["y"])
            names, numbers = np.unique(owners, return_inverse=True)
            found["client"] = numbers.astype(np.int64)
            if self.test_owners is not None:
                tested = _owners(self.test_owners, "test_owners", found["y_test"])
                if (tested.dtype.kind in "iu") != (names.dtype.kind in "iu"):
                    raise DataError(
                        f"data: test_owners is {tested.dtype}, owners {names.dtype}; expected "
                        "integers in both, or strings"
                    )
                place = np.searchsorted(names, tested).clip(max=len(names) - 1)
                found["client_test"] = np.where(names[place] == tested, place, -1)
        checked = Arrays(
            path="data",
            classes=self.classes,
            label_type=self.label_type,
            integers=self.integers,
            padding=self.padding,
        )
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


def _pair(part: Any, name: str, integers: bool, lists: bool) -> tuple[dict[str, _Input], _Input]:
    """Inputs, by name or one whose name is empty, and labels of (x, y) or of a data set.

    Args:
        part: the pair or the data set.
        name: of the part.
        integers: whether inputs may be lists of unequal length.
        lists: whether labels may.
    """
    if isinstance(part, tuple | list) and len(part) == 2:
        x, y = part
        parted = integers or isinstance(x, Mapping)
        found = {k: _input(v, _where(name, k), parted) for k, v in _named(x, name).items()}
        return found, _input(y, f"{name}, y", lists)
    if not (hasattr(part, "__getitem__") and hasattr(part, "__len__")) or hasattr(part, "dtype"):
        raise DataError(
            f"data: {name} is a {type(part).__name__}, expected (x, y) or a map-style data set of "
            "torch, with a length and items (x, y)"
        )
    items = [_item(part, index, name) for index in range(len(part))]
    if not items:
        raise DataError(f"data: {name} has no example")
    for index in np.linspace(0, len(items) - 1, min(_TRIED, len(items))).astype(int).tolist():
        (x, y), (again, label) = items[index], _item(part, index, name)
        if {*x} != {*again} or _differ(y, label) or any(_differ(x[k], again[k]) for k in x):
            raise DataError(
                f"data: {name}: item {index} is another one each time; hpcfl.run keeps examples as "
                "they are: pass a data set that draws nothing at random (no augmentation)"
            )
    xs, y = zip(*items, strict=True)
    if other := next((number for number, row in enumerate(xs) if {*row} != {*xs[0]}), None):
        raise DataError(
            f"data: {name}: item {other} has the inputs {', '.join(xs[other])}, item 0 "
            f"{', '.join(xs[0])}; expected the same in each"
        )
    found = {}
    for k in xs[0]:
        x = [row[k] for row in xs]
        shapes = sorted({np.shape(row) for row in x})
        if not (integers or k) and len(shapes) > 1:
            raise DataError(
                f"data: {name} has inputs of shapes {shapes[0]} and {shapes[1]}, expected one shape"
            )
        found[k] = _input(x, _where(name, k), integers or bool(k))
    return found, _input(y, f"{name}, y", lists)


def _owners(values: Any, name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """The owner of each example, integers or strings [n]."""
    owners = _array(values, name)
    if owners.dtype.kind in ("O", "T") and all(isinstance(n, str) for n in owners.flat):
        owners = np.array(owners.tolist())  # as pandas has them
    if owners.shape != labels.shape[:1] or owners.dtype.kind not in "iuUS":
        which = "training" if name == "owners" else "test"
        raise DataError(
            f"data: {name} is {owners.dtype} of shape {owners.shape}, expected integers or "
            f"strings of shape ({len(labels)},): the owner of each {which} example"
        )
    return owners


def _named(x: Any, name: str) -> Mapping[str, Any]:
    """The inputs of a part or an item by name, or one whose name is empty."""
    if not isinstance(x, Mapping):
        return {"": x}
    if not x:
        raise DataError(f"data: {name}, x is an empty dict, expected one input at least")
    return x


def _where(part: str, name: str) -> str:
    """An input of a part, for messages."""
    return f"{part}, x[{name!r}]" if name else f"{part}, x"


def _input(x: Any, where: str, lists: bool) -> _Input:
    """An array [n, ...], or n lists of integers, if there may be such."""
    if lists and isinstance(x, tuple | list):
        return [_array(row, where) for row in x]
    return _array(x, where)


def _longest(x: _Input) -> int:
    """The length of the longest list of integers, or of each row of one array."""
    return max(map(np.size, x), default=0) if isinstance(x, list) else np.atleast_1d(x)[:1].size


def _padded(x: _Input, longest: int, name: str, padding: int | None = None) -> NDArray[Any]:
    """One array of x: lists of integers are filled up at their ends, by 0 or what is padding."""
    if not isinstance(x, list):
        return x
    if padding is not None and any(row.ndim for row in x):
        x = [np.atleast_1d(row) for row in x]  # an item's label of size 1 is a number
    if len({row.shape for row in x} | {(longest,)}) == 1 or any(row.ndim != 1 for row in x):
        return _array(x, name)  # as it is; what is no array is refused
    padded = np.full((len(x), longest), padding or 0, np.int64)
    for number, row in enumerate(x):
        where = f"data: {name}: list {number}"
        if not row.size or row.dtype.kind not in "iu":
            raise DataError(f"{where} is {row.tolist()!s:.60}, expected at least one integer")
        if padding is None and not row.all():
            raise DataError(
                f"{where} holds 0, which fills up lists of unequal length; count from 1, as "
                "[[k + 1 for k in row] for row in x], or, where 0 has a meaning of its own, as in "
                "token_type_ids, make all lists equally long before, as a tokenizer does by "
                "padding='max_length'"
            )
        padded[number, : row.size] = row
    return padded


def _item(part: Any, index: int, name: str) -> tuple[dict[str, NDArray[Any]], Any]:
    item = part[index]
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise DataError(
            f"data: item {index} of {name} is a {type(item).__name__}, expected a pair (x, y)"
        )
    x, y = item
    xs = {k: _array(v, _where(name, k)) for k, v in _named(x, name).items()}
    label = _array(y, f"{name}, y")
    return xs, label.item() if label.size == 1 else label


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
        cure = ""
        if isinstance(values, list | tuple) and name.endswith((", x", ", y")):
            need = "integers=True" if name.endswith("x") else "padding=-100, or another number"
            cure = f"; lists of integers of unequal length need {need}"
        raise DataError(
            f"data: {name}: a {type(values).__name__} is no array of numbers: {e}{cure}"
        ) from e
