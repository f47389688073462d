"""The base of data sets of 28x28 grey images in IDX files, as MNIST is published."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.download import Track, check_count, quiet
from hpcfl.data.grayscale import SIDE, Grey
from hpcfl.data.idx import idx_place, read_idx
from hpcfl.data.labels import require_classes, require_integers
from hpcfl.data.prepared_file import prepare_command
from hpcfl.errors import DataError
from hpcfl.io.files import read_arrays
from hpcfl.types import Examples, PathText

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class IdxFiles(NamedTuple):
    """The files and numbers of a data set, as it is published."""

    name: str
    """The name of the .npz."""
    prepare: str
    """What `hpcfl data prepare` is told to fetch it."""
    train: tuple[Path, Path]
    """The files of training images and labels, below the root and without the suffix .gz."""
    test: tuple[Path, Path]
    classes: int
    counts: tuple[int, int]
    """Numbers of training and test examples."""
    what: str = ""
    """Which examples these are, for messages: " of letters"; empty where there is one kind."""
    first: int = 0
    """The label of the first class in the publisher's files."""
    transposed: bool = False
    """Whether the publisher's images are transposed."""


@dataclass(frozen=True, kw_only=True)
class IdxImages(DataConfig):
    """Grey images uint8 [n, 28, 28] and labels, from IDX files or an .npz."""

    names_clients: ClassVar[bool | None] = False

    root: PathText = "data"
    """The folder that holds the official files as torchvision puts them, or an .npz."""
    flat: bool = False
    """Inputs are vectors [784]; otherwise images [1, 28, 28]."""
    download: bool = False
    """Fetch the official files into root, unless they or the .npz are there."""

    @property
    @abstractmethod
    def layout(self) -> IdxFiles:
        """The files and numbers of the data set."""

    @abstractmethod
    def provide(self, track: Track) -> None:
        """Fetch the official files that are missing, and check those that are packed.

        Raises:
            DataError: one cannot be had, which says where it belongs; or it is another one.
        """

    def transform(self) -> Grey:
        """Make model inputs of images."""
        return Grey(self.flat)

    def fetch(self) -> None:
        """Download the official files if the job says so, unless they or the .npz are there."""
        if self.download and not self._files_exist() and not self._npz.is_file():
            self.provide(quiet)

    def prepare(self, track: Track) -> Path:
        """Fetch the official files, unless they or the .npz are there; count all."""
        place, layout = self._npz, self.layout
        if not place.is_file() or self._files_exist():
            self.provide(track)
            place = Path(self.root) / layout.train[0].parent
        for part, what, count in zip(
            self._read(), ("training", "test"), layout.counts, strict=True
        ):
            check_count(place, f"{what} examples{layout.what}", len(part.labels), count)
        return place

    def load(self, seed: int) -> Dataset:
        """Read the official files, or the .npz."""
        train, test = self._read()
        return Dataset(
            train=train,
            test=test,
            natural=None,
            classes=self.layout.classes,
            loss="cross_entropy",
            transform=self.transform(),
        )

    @property
    def _npz(self) -> Path:
        return Path(self.root) / f"{self.layout.name}.npz"

    def _idx_files(self) -> list[Path]:
        """The official files, without the suffix .gz."""
        layout = self.layout
        return [Path(self.root) / file for file in (*layout.train, *layout.test)]

    def _files_exist(self) -> bool:
        return all(idx_place(file).exists() for file in self._idx_files())

    def _read(self) -> tuple[Examples, Examples]:
        """The training and test examples, with labels from 0.

        Raises:
            DataError: neither the files nor the .npz are there, or they are something else.
        """
        layout = self.layout
        if self._files_exist():
            return self._official(layout.train), self._official(layout.test)
        if not self._npz.is_file():
            raise DataError(
                f"{self.root}: found neither {layout.train[0]}[.gz] and the like nor "
                f"{self._npz.name}; put them there, set data.root to where they are, or say "
                f"{prepare_command(layout.prepare, self.root)}"
            )
        arrays = read_arrays(self._npz, _ARRAYS)
        x_train, y_train, x_test, y_test = (arrays[name] for name in _ARRAYS)
        first = layout.first and _first(self._npz, (y_train, y_test), layout)
        return (
            _examples(f"{self._npz}: x_train, y_train", x_train, y_train, layout.classes, first),
            _examples(f"{self._npz}: x_test, y_test", x_test, y_test, layout.classes, first),
        )

    def _official(self, files: tuple[Path, Path]) -> Examples:
        """Two of the publisher's files; transposed images are turned upright."""
        root, layout = Path(self.root), self.layout
        x, y = read_idx(root / files[0], (SIDE, SIDE)), read_idx(root / files[1], ())
        upright = x.transpose(0, 2, 1) if layout.transposed else x
        return _examples(str(root / files[1]), upright, y, layout.classes, layout.first)


def _first(path: Path, labels: Sequence[NDArray[Any]], layout: IdxFiles) -> int:
    """The label of the first class: some files count from 0 what the publisher counts from 1."""
    if any(np.any(y == 0) for y in labels):
        return 0
    if any(np.any(y == layout.classes) for y in labels):
        return layout.first
    raise DataError(
        f"{path}: y_train and y_test hold neither 0 nor {layout.classes}, so nothing tells whether "
        f"they count from 0 or from {layout.first}; expected labels of every class"
    )


def _examples(where: str, x: NDArray[Any], y: NDArray[Any], classes: int, first: int) -> Examples:
    """Checked tensors: uint8 [n, 28, 28], and int64 [n] from 0."""
    if x.dtype != np.uint8 or x.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{where}: images are {x.dtype} of shape {x.shape}, expected uint8 [n, {SIDE}, {SIDE}]"
        )
    require_integers(where, y, len(x))
    given = y.astype(np.int64)
    require_classes(where, given, classes, first)
    labels = given - first
    # Bytes of a file are read-only, of which torch warns: they are copied, an .npz's are not.
    inputs = np.require(x, requirements=["C", "W"])
    return Examples(torch.from_numpy(inputs), torch.from_numpy(labels))
