"""EMNIST: handwritten digits and letters, 28x28 (Cohen et al., 2017; arXiv:1702.05373)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.download import Track, check_count, quiet
from hpcfl.data.grayscale import SIDE, Grey
from hpcfl.data.idx import idx_place, read_idx
from hpcfl.data.inputs import InputFile, input_files
from hpcfl.data.labels import require_integers
from hpcfl.errors import DataError
from hpcfl.io.files import read_arrays
from hpcfl.types import Examples, PathText

URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
MD5 = "58c8d27c78d21e728a6bc7b3cc06412e"
_RAW = Path("EMNIST") / "raw"  # where torchvision puts them
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Split(NamedTuple):
    """One of the ways in which the owners split EMNIST."""

    classes: int
    first: int
    """The label of the first class."""
    counts: tuple[int, int]
    """Of training and test examples."""


SPLITS = {
    "balanced": Split(classes=47, first=0, counts=(112_800, 18_800)),
    "letters": Split(classes=26, first=1, counts=(124_800, 20_800)),
}


@dataclass(frozen=True, kw_only=True)
class Emnist(DataConfig):
    """Grey images uint8 [n, 28, 28], upright, to [0, 1] (not normalised); 47 or 26 classes."""

    root: PathText = "data"
    """The folder that holds EMNIST/raw as torchvision makes it, or emnist_SPLIT.npz."""
    split: Literal["balanced", "letters"] = "balanced"
    """balanced: 47 digits and letters; letters: 26, upper and lower case as one."""
    flat: bool = False
    """Inputs are vectors [784]; otherwise images [1, 28, 28]."""
    download: bool = False
    """Fetch the official files into root if they are missing, as `hpcfl data prepare` does."""

    def fetch(self) -> None:
        """Download the official files if the job says so and they are missing."""
        if self.download:
            self._provide(quiet)

    def prepare(self, track: Track) -> Path:
        """Fetch and unpack the official files, unless they or the .npz are there; count all."""
        place = self._npz
        if not place.is_file() or self._files_exist():
            self._provide(track)
            place = Path(self.root) / _RAW
        for examples, what, count in zip(
            self._read(), ("training", "test"), SPLITS[self.split].counts, strict=True
        ):
            check_count(place, f"{what} examples of {self.split}", len(examples.labels), count)
        return place

    def input_files(self) -> tuple[InputFile, ...]:
        """The official files, packed or not, or the .npz."""
        if not self._files_exist():
            return input_files(self._npz)
        return input_files(*(idx_place(Path(self.root) / file) for file in self._idx_files()))

    def load(self, seed: int) -> Dataset:
        """Read the official files, or the .npz."""
        train, test = self._read()
        return Dataset(
            train=train,
            test=test,
            natural=None,
            classes=SPLITS[self.split].classes,
            loss="cross_entropy",
            transform=Grey(self.flat),
        )

    @property
    def _npz(self) -> Path:
        return Path(self.root) / f"emnist_{self.split}.npz"

    def _idx(self, part: str, what: str) -> Path:
        return _RAW / f"emnist-{self.split}-{part}-{what}-ubyte"

    def _idx_files(self) -> list[Path]:
        """The official files of this split, below the root."""
        kinds = ("images-idx3", "labels-idx1")
        return [self._idx(part, kind) for part in ("train", "test") for kind in kinds]

    def _files_exist(self) -> bool:
        files = [Path(self.root) / file for file in self._idx_files()]
        return all(f.exists() or f.with_name(f.name + ".gz").exists() for f in files)

    def _provide(self, track: Track) -> None:
        """Extract this split's files from the owners' archive; they stay compressed."""
        if self._files_exist():
            return
        members = {f"gzip/{file.name}.gz": f"{file}.gz" for file in self._idx_files()}
        name = str(_RAW / URL.rpartition("/")[2])
        archive = Archive(name=name, url=URL, md5=MD5, members=members)
        provide_members(Path(self.root), archive, track)

    def _read(self) -> tuple[Examples, Examples]:
        """The training and test examples, with labels from 0.

        Raises:
            DataError: neither the files nor the .npz are there, or they are something else.
        """
        if self._files_exist():
            return self._official("train"), self._official("test")
        if not self._npz.is_file():
            raise DataError(
                f"{self.root}: found neither {self._idx('train', 'images-idx3')}[.gz] and its kin "
                f"nor {self._npz.name}; put them there, set data.root to where they are, or say "
                f"hpcfl data prepare emnist split={self.split} --root {self.root}"
            )
        arrays = read_arrays(self._npz, _ARRAYS)
        x_train, y_train, x_test, y_test = (arrays[name] for name in _ARRAYS)
        split = SPLITS[self.split]
        first = split.first and _first(self._npz, (y_train, y_test), split)
        return (
            _examples(f"{self._npz}: x_train, y_train", x_train, y_train, split, first),
            _examples(f"{self._npz}: x_test, y_test", x_test, y_test, split, first),
        )

    def _official(self, part: str) -> Examples:
        """Two of the owners' files, whose transposed images are turned upright."""
        root, split = Path(self.root), SPLITS[self.split]
        x = read_idx(root / self._idx(part, "images-idx3"), (SIDE, SIDE))
        y = read_idx(root / self._idx(part, "labels-idx1"), ())
        where = str(root / self._idx(part, "labels-idx1"))
        return _examples(where, x.transpose(0, 2, 1), y, split, split.first)


def _first(path: Path, labels: Sequence[NDArray[Any]], split: Split) -> int:
    """The label of the first class: some files count letters from 0, the owners' from 1."""
    if any(np.any(y == 0) for y in labels):
        return 0
    if any(np.any(y == split.classes) for y in labels):
        return split.first
    raise DataError(
        f"{path}: y_train and y_test hold neither 0 nor {split.classes}, so nothing tells whether "
        f"they count from 0 or from {split.first}; expected labels of every class"
    )


def _examples(where: str, x: NDArray[Any], y: NDArray[Any], split: Split, first: int) -> Examples:
    """Checked tensors: uint8 [n, 28, 28], and int64 [n] from 0."""
    if x.dtype != np.uint8 or x.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{where}: images are {x.dtype} of shape {x.shape}, expected uint8 [n, {SIDE}, {SIDE}]"
        )
    require_integers(where, y, len(x))
    labels = y.astype(np.int64) - first
    if labels.min() < 0 or labels.max() >= split.classes:
        row = int(np.argmax((labels < 0) | (labels >= split.classes)))
        raise DataError(
            f"{where}: the label of row {row} is {y[row]}, expected {first} to "
            f"{first + split.classes - 1}"
        )
    return Examples(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(labels))
