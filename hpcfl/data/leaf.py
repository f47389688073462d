"""LEAF's JSON: users and their examples, a file for some hundred users (arXiv:1812.01097)."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data import compact
from hpcfl.data.arrays import cast
from hpcfl.data.base import DataConfig, Dataset, Transform
from hpcfl.data.grey import Grey
from hpcfl.data.shakespeare import ALPHABET, to_indices
from hpcfl.errors import DataError
from hpcfl.types import Count, Examples, PathText

_KEYS = {"users": list, "num_samples": list, "user_data": dict}


class Kind(NamedTuple):
    """How one kind of examples is read."""

    inputs: Callable[[list[Any]], NDArray[Any]]
    labels: Callable[[list[Any]], NDArray[Any]]
    classes: int | None


_KINDS = {
    "images": Kind(compact.images, compact.integers, 62),
    "text": Kind(compact.text, compact.characters, len(ALPHABET)),
    "vectors": Kind(compact.vectors, compact.integers, None),
}
_TRANSFORMS: Mapping[str, Transform] = {"text": to_indices, "vectors": cast}


@dataclass(frozen=True, kw_only=True)
class Leaf(DataConfig):
    """LEAF's train/*.json and test/*.json; users are clients, in the order of files and users."""

    root: PathText = "data"
    """The folder with the folders train and test, as LEAF's preprocess.sh leaves it."""
    examples: Literal["images", "text", "vectors"] = "images"
    """images: 784 grey values (FEMNIST); text: 80 characters, then the next; vectors: numbers."""
    classes: Count | None = None
    """How many classes; if absent 62 of images, and of vectors the largest label + 1."""
    flat: bool = False
    """Images become vectors [784] instead of [1, 28, 28]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.examples == "text" and self.classes is not None:
            raise ValueError(f"classes is {self.classes}, but text has {len(ALPHABET)} characters")
        if self.examples != "images" and self.flat:
            raise ValueError(f"flat is for images, but examples is {self.examples}")

    def load(self, seed: int) -> Dataset:
        """Read file by file: a file's text is in memory as a whole, its numbers user by user."""
        kind = _KINDS[self.examples]
        train, test = (list(_users(Path(self.root) / part, kind)) for part in ("train", "test"))
        for user in train:
            if not len(user.y):
                raise DataError(f"{user} has no example")
        users = [*train, *(user for user in test if len(user.y))]
        if len(users) == len(train):
            raise DataError(f"{self.root}/test: no user has an example")
        largest = max(int(user.y.max()) for user in train)
        classes = self.classes or kind.classes or max(largest + 1, 1)
        for user in users:
            _check(user, classes, users[0].x.shape[1:])
        ends = np.cumsum([len(user.y) for user in train])
        return Dataset(
            train=_joined(train),
            test=_joined(users[len(train) :]),
            natural=np.split(np.arange(ends[-1]), ends[:-1]),
            classes=classes,
            loss="cross_entropy",
            transform=_TRANSFORMS.get(self.examples, Grey(self.flat)),
        )


class User(NamedTuple):
    """A user's examples, compact."""

    path: Path
    name: str
    x: NDArray[Any]
    y: NDArray[Any]

    def __str__(self) -> str:
        return f"{self.path}: user {self.name!r}"


class Own(NamedTuple):
    """What stands for a user's ``{"x": [...], "y": [...]}`` as soon as it is read."""

    x: NDArray[Any]
    y: NDArray[Any]
    fault: str = ""
    """What is wrong with it, to be told together with whose it is."""


def _users(folder: Path, kind: Kind) -> Iterator[User]:
    """The users of a folder's files, none twice."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"{folder}: holds no .json file; expected LEAF's train/ and test/ there")
    seen: set[str] = set()
    for path in paths:
        for user in _read(path, kind):
            if user.name in seen:
                raise DataError(f"{user} is in another file too")
            seen.add(user.name)
            yield user
    if not seen:
        raise DataError(f"{folder}: no user in its {len(paths)} files")


def _read(path: Path, kind: Kind) -> Iterator[User]:
    """The users of one file."""
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
        own = data.get(name) if isinstance(name, str) else None
        if not isinstance(own, Own):
            raise DataError(f"{path}: user {name!r}: user_data has no lists x and y of that user")
        if own.fault or len(own.y) != count:
            fault = own.fault or f"num_samples is {count!r}, but y holds {len(own.y)} labels"
            raise DataError(f"{path}: user {name!r}: {fault}")
        yield User(path, name, own.x, own.y)


def _parse(path: Path, kind: Kind) -> Any:
    """The file's content, in which every user's lists have become arrays while it was read."""

    def shrink(pairs: list[tuple[str, Any]]) -> Any:
        made = dict(pairs)
        if len(made) != len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"the key {max(keys, key=keys.count)!r} stands twice")
        if not (isinstance(made.get("x"), list) and isinstance(made.get("y"), list)):
            return made
        return _own(made["x"], made["y"], kind)

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"holds {name}")

    try:
        text = path.read_text("utf-8")
        return json.loads(text, object_pairs_hook=shrink, parse_constant=refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a readable JSON file: {error}") from error


def _own(x: list[Any], y: list[Any], kind: Kind) -> Own:
    nothing = np.empty(0, dtype=np.int64)
    if len(x) != len(y):
        return Own(nothing, nothing, f"{len(x)} examples in x, but {len(y)} labels in y")
    try:
        return Own(kind.inputs(x), kind.labels(y)) if x else Own(nothing, nothing)
    except ValueError as error:
        return Own(nothing, nothing, str(error))


def _check(user: User, classes: int, shape: tuple[int, ...]) -> None:
    """Labels in range, and inputs as everyone else's."""
    if user.x.shape[1:] != shape:
        raise DataError(f"{user}: x holds {user.x.shape[1]} numbers a row, others {shape[0]}")
    wrong = (user.y < 0) | (user.y >= classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{user}: the label of row {row} is {user.y[row]}, expected 0 to {classes - 1}"
        )


def _joined(users: Iterable[User]) -> Examples:
    _, _, inputs, labels = zip(*users, strict=True)
    return Examples(
        torch.from_numpy(np.concatenate(inputs)),
        torch.from_numpy(np.concatenate(labels).astype(np.int64)),
    )
