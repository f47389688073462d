"""Parse LEAF's JSON files: users and their examples, some hundred users in each file."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.download import Track
from hpcfl.data.labels import require_classes
from hpcfl.data.sources import leaf_arrays
from hpcfl.data.sources.shakespeare import ALPHABET
from hpcfl.errors import DataError
from hpcfl.io.files import read_error
from hpcfl.io.regular import read_text

_KEYS = {"users": list, "num_samples": list, "user_data": dict}


class Kind(NamedTuple):
    """The functions that read one kind of examples."""

    inputs: Callable[[list[Any]], NDArray[Any]]
    labels: Callable[[list[Any]], NDArray[Any]]
    classes: int | None


KINDS = {
    "images": Kind(leaf_arrays.images, leaf_arrays.integers, 62),
    "text": Kind(leaf_arrays.text, leaf_arrays.characters, len(ALPHABET)),
    "vectors": Kind(leaf_arrays.vectors, leaf_arrays.integers, None),
}


class User(NamedTuple):
    """A user's examples as arrays."""

    path: Path
    name: str
    x: NDArray[Any]
    y: NDArray[Any]

    def __str__(self) -> str:
        return f"{self.path}: user {self.name!r}"


class UserArrays(NamedTuple):
    """The arrays that replace a user's ``{"x": [...], "y": [...]}`` while a file is parsed.

    As Python objects, the lists of a whole file would take many times the memory.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    fault: str = ""
    """The error in the lists, empty if there is none; the caller adds the name of the user."""


def users(folder: Path, kind: Kind, track: Track) -> list[User]:
    """Read the users of all files of a folder; some may have no example.

    Raises:
        DataError: a file is not in LEAF's format, or a user is in two files; it names file, user
            and row.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"{folder}: holds no .json file; expected LEAF's train/ and test/ there")
    found: dict[str, User] = {}
    for path in track(paths, f"reading {folder}", len(paths)):
        for user in _read(path, kind):
            if user.name in found:
                raise DataError(f"{user} is in another file too")
            found[user.name] = user
    if not found:
        raise DataError(f"{folder}: no user in its {len(paths)} files")
    return list(found.values())


def _read(path: Path, kind: Kind) -> Iterator[User]:
    """Read the users of one file."""
    content = _parse(path, kind)
    for key, form in _KEYS.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), form):
            raise DataError(f"{path}: no {form.__name__} {key!r}; expected {', '.join(_KEYS)}")
    names, counts, data = (content[key] for key in _KEYS)
    if not len(names) == len(counts) == len(data):
        raise DataError(
            f"{path}: {len(names)} users, {len(counts)} num_samples, {len(data)} in user_data"
        )
    for name, count in zip(names, counts, strict=True):
        arrays = data.get(name) if isinstance(name, str) else None
        if not isinstance(arrays, UserArrays):
            raise DataError(f"{path}: user {name!r}: user_data has no lists x and y of that user")
        if arrays.fault or len(arrays.y) != count:
            fault = arrays.fault or f"num_samples is {count!r}, but y holds {len(arrays.y)} labels"
            raise DataError(f"{path}: user {name!r}: {fault}")
        yield User(path, name, arrays.x, arrays.y)


def _parse(path: Path, kind: Kind) -> Any:
    """The content of a file, with ``UserArrays`` in place of each user's lists."""

    def shrink(pairs: list[tuple[str, Any]]) -> Any:
        content, counts = dict(pairs), Counter(key for key, _ in pairs)
        double = next((key for key, count in counts.items() if count > 1), None)
        if isinstance(content.get("x"), list) and isinstance(content.get("y"), list):
            return _user_arrays(content["x"], content["y"], kind, double)
        if double is not None:  # in user_data, a user
            raise ValueError(f"the key {double!r} stands twice")
        return content

    try:
        return json.loads(read_text(path), object_pairs_hook=shrink)
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: not a readable JSON file: {error}"
        raise read_error(error, message, DataError) from error


def _user_arrays(x: list[Any], y: list[Any], kind: Kind, double: str | None) -> UserArrays:
    nothing = np.empty(0, dtype=np.int64)
    if double is not None:
        return UserArrays(nothing, nothing, f"the key {double!r} stands twice")
    if len(x) != len(y):
        return UserArrays(nothing, nothing, f"{len(x)} examples in x, but {len(y)} labels in y")
    try:
        return UserArrays(kind.inputs(x), kind.labels(y)) if x else UserArrays(nothing, nothing)
    except ValueError as error:
        return UserArrays(nothing, nothing, str(error))


def check(user: User, classes: int, shape: tuple[int, ...]) -> None:
    """Refuse labels out of range, and inputs of another shape than other users'.

    Raises:
        DataError: a label or the shape is wrong.
    """
    if user.x.shape[1:] != shape:
        raise DataError(f"{user}: x holds {user.x.shape[1]} numbers a row, others {shape[0]}")
    require_classes(str(user), user.y, classes)
