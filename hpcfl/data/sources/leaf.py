"""LEAF's JSON: users and their examples (Caldas et al., arXiv:1812.01097)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.base import DataConfig, Dataset, Transform
from hpcfl.data.download import Track, quiet
from hpcfl.data.grayscale import Grey
from hpcfl.data.labels import count_of, missing_classes
from hpcfl.data.partition import ExampleRows, consecutive_rows
from hpcfl.data.prepared_file import (
    commit,
    preparation_errors,
    require_same_sources,
    source_fingerprint,
    stamps,
)
from hpcfl.data.sources.arrays import cast, to_indices
from hpcfl.data.sources.leaf_json import KINDS, User, check, users
from hpcfl.data.sources.shakespeare import ALPHABET
from hpcfl.errors import DataError
from hpcfl.io.files import read_arrays
from hpcfl.io.regular import open_write
from hpcfl.types import Count, Examples, PathText

_ARRAYS = ("x_train", "y_train", "x_test", "y_test", "sizes")
_TEST_ARRAYS = ("test_sizes", "test_clients")
"""For each user with test examples: their number, and the client that the user is, or -1."""
_TRANSFORMS: Mapping[str, Transform] = {"text": to_indices, "vectors": cast}


@dataclass(frozen=True, kw_only=True)
class Leaf(DataConfig):
    """LEAF's train/*.json and test/*.json; users are clients, in the order of files and users.

    The test examples are those of all users; with ``natural_clients`` those of the drawn ones.
    """

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

    @property
    def padded_text(self) -> bool | None:
        """No: windows of text are filled with characters."""
        return False if self.examples == "text" else None

    @property
    def _packed(self) -> Path:
        """The file that ``prepare`` writes."""
        return Path(self.root) / f"leaf_{self.examples}.npz"

    def prepare(self, track: Track) -> Path:
        """Parse the JSON once and write all examples to one file of arrays, unless it is there.

        Raises:
            DataError: the JSON is damaged, or not what the file of arrays was made from.
        """
        path, sources = self._packed, stamps(Path(self.root), self._sources())
        origin = source_fingerprint(sources)
        if not path.exists():
            arrays = self._parse(track)
            part = path.with_name(path.name + ".part")
            with preparation_errors(path):
                with open_write(part) as file:
                    np.savez(file, allow_pickle=False, origin=np.array(origin), **arrays)
                commit(part, path)
        elif sources:
            require_same_sources(path, read_arrays(path, (), ("origin",)).get("origin"), origin)
        self.load(0)
        return path

    def _sources(self) -> list[str]:
        """The JSON files below root."""
        root = Path(self.root)
        return [
            path.relative_to(root).as_posix()
            for part in ("train", "test")
            for path in sorted((root / part).glob("*.json"))
        ]

    def load(self, seed: int) -> Dataset:
        """Read the file that ``prepare`` wrote, or else parse the JSON."""
        if self._packed.exists():
            arrays = read_arrays(self._packed, _ARRAYS, _TEST_ARRAYS)
            self._check(arrays)
        else:
            arrays = self._parse(quiet)
        y_train = arrays["y_train"]
        if self.examples == "vectors" and self.classes is None:
            where, tests = f"{self.root}: y", arrays["y_test"]
            count_of(where, y_train, tests, lambda low: f"subtract {low} from every y in the JSON")
        classes = self._classes(y_train)
        return Dataset(
            train=_examples(arrays["x_train"], arrays["y_train"]),
            test=_examples(arrays["x_test"], arrays["y_test"]),
            natural=consecutive_rows(arrays["sizes"]),
            classes=classes,
            loss="cross_entropy",
            transform=_TRANSFORMS.get(self.examples, Grey(self.flat)),
            # A character that no client has is not worth a note.
            notes=() if self.examples == "text" else missing_classes(y_train, classes),
            natural_tests=self._tests(arrays),
        )

    def _tests(self, arrays: Mapping[str, NDArray[Any]]) -> list[ExampleRows]:
        """The test examples of each client.

        Raises:
            DataError: the arrays that say so are damaged, or missing as an earlier version left
                them out.
        """
        if not all(name in arrays for name in _TEST_ARRAYS):
            raise DataError(
                f"{self._packed}: made by an earlier version, does not say whose the test "
                "examples are; remove it and prepare it again"
            )
        sizes, clients = (arrays[name] for name in _TEST_ARRAYS)
        count, none = len(arrays["sizes"]), np.empty(0, dtype=np.int64)
        sound = (
            sizes.dtype == clients.dtype == np.int64
            and sizes.shape == clients.shape == (len(sizes),)
            and bool(np.all((sizes > 0) & (clients >= -1) & (clients < count)))
            and sizes.sum() == len(arrays["y_test"])
        )
        if not sound:
            raise DataError(f"{self._packed}: damaged; remove it and prepare it again")
        owned = dict(zip(clients.tolist(), consecutive_rows(sizes), strict=True))
        return [owned.get(client, none) for client in range(count)]

    def _classes(self, labels: NDArray[Any]) -> int:
        return self.classes or KINDS[self.examples].classes or max(int(labels.max()) + 1, 1)

    def _parse(self, track: Track) -> dict[str, NDArray[Any]]:
        """Parse all users' examples; a file's text is in memory as a whole, its numbers by user."""
        kind = KINDS[self.examples]
        train, test = (users(Path(self.root) / part, kind, track) for part in ("train", "test"))
        for user in train:
            if not len(user.y):
                raise DataError(f"{user} has no example")
        test = [user for user in test if len(user.y)]
        if not test:
            raise DataError(f"{self.root}/test: no user has an example")
        classes = self._classes(np.concatenate([user.y for user in train]))
        for user in (*train, *test):
            check(user, classes, train[0].x.shape[1:])
        place = {user.name: client for client, user in enumerate(train)}
        return {
            **_joined("train", train),
            **_joined("test", test),
            "test_sizes": np.array([len(user.y) for user in test]),
            "test_clients": np.array([place.get(user.name, -1) for user in test]),
            "sizes": np.array([len(user.y) for user in train]),
            "users": np.array([user.name for user in train]),
        }

    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Check that the prepared arrays are whole and fit the job."""
        sizes, x_train, x_test = arrays["sizes"], arrays["x_train"], arrays["x_test"]
        form = np.dtype(np.float32 if self.examples == "vectors" else np.uint8)
        whole = (
            sizes.dtype == np.int64
            and sizes.ndim == 1
            and bool(np.all((sizes > 0) & (sizes <= x_train.size)))
            and x_train.shape == (sizes.sum(), *x_test.shape[1:])
        )
        for part in ("train", "test"):
            x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
            labelled = y.size and y.dtype == np.int64 and y.shape == x.shape[:1]
            if not (whole and labelled and x.dtype == form):
                raise DataError(f"{self._packed}: damaged; remove it and prepare it again")
            classes = self._classes(arrays["y_train"])
            if y.min() < 0 or y.max() >= classes:
                raise DataError(
                    f"{self._packed}: y_{part} runs from {y.min()} to {y.max()}, expected 0 to "
                    f"{classes - 1}"
                )


def _joined(part: str, own: Sequence[User]) -> dict[str, NDArray[Any]]:
    return {
        f"x_{part}": np.concatenate([user.x for user in own]),
        f"y_{part}": np.concatenate([user.y for user in own]).astype(np.int64),
    }


def _examples(x: NDArray[Any], y: NDArray[Any]) -> Examples:
    return Examples(torch.from_numpy(x), torch.from_numpy(y))
