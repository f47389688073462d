"""TensorFlow Federated's HDF5 files: EMNIST by writer, and CIFAR-100 by coarse label."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.base import DataConfig, Dataset, Transform
from hpcfl.data.download import Track, check_count, quiet
from hpcfl.data.grayscale import SIDE, Grey, levels
from hpcfl.data.hdf5 import feature, open_examples
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.labels import require_classes
from hpcfl.data.partition import ExampleRows, consecutive_rows
from hpcfl.data.sources.cifar100 import Cifar100
from hpcfl.errors import DataError
from hpcfl.types import Examples, IntArray, PathText

URL = "https://storage.googleapis.com/tff-datasets-public"


class Files(NamedTuple):
    """The files and numbers of one of the data sets: NAME_train.h5 and NAME_test.h5."""

    name: str
    sha256: str
    inputs: str
    """The name of a client's images; its labels are ``label``."""
    shape: tuple[int, ...]
    classes: int
    clients: tuple[int, int]
    """Numbers of clients with training examples and with test examples."""
    counts: tuple[int, int]
    """Numbers of training and test examples."""


DATASETS = {
    "emnist": Files(
        name="fed_emnist",
        sha256="fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
        inputs="pixels",
        shape=(SIDE, SIDE),
        classes=62,
        clients=(3400, 3400),
        counts=(671_585, 77_483),
    ),
    "emnist_digits": Files(
        name="fed_emnist_digitsonly",
        sha256="55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
        inputs="pixels",
        shape=(SIDE, SIDE),
        classes=10,
        clients=(3383, 3383),
        counts=(341_873, 40_832),
    ),
    "cifar100": Files(
        name="fed_cifar100",
        sha256="e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de",
        inputs="image",
        shape=(32, 32, 3),
        classes=100,
        clients=(500, 100),
        counts=(50_000, 10_000),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Tff(DataConfig):
    """EMNIST of 3400 writers, uint8 [n, 28, 28], or CIFAR-100 of 500 clients, uint8 [n, 32, 32, 3].

    Clients are numbered in the order of their names.  All clients' test examples form the test set;
    with ``natural_clients`` those of the drawn writers (CIFAR-100's test clients are others).
    """

    root: PathText = "data"
    """The folder that holds fed_emnist_train.h5, fed_emnist_test.h5, ... (examples/CLIENT/...)."""
    dataset: Literal["emnist", "emnist_digits", "cifar100"] = "emnist"
    """emnist: 62 classes; emnist_digits: 10 (TFF's only_digits); cifar100: the 100 fine labels."""
    flat: bool = False
    """EMNIST's inputs are vectors [784]; otherwise images [1, 28, 28]."""
    augment: bool = True
    """CIFAR-100's training images are cropped from a padding of 4 and flipped, per image."""
    download: bool = False
    """Fetch the official files into root if they are missing, as `hpcfl data prepare` does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flat and self.dataset == "cifar100":
            raise ValueError("flat is for emnist, but dataset is cifar100")

    def fetch(self) -> None:
        """Download the official files if the job says so and they are missing."""
        if self.download:
            self._provide(quiet)

    def prepare(self, track: Track) -> Path:
        """Fetch and unpack the two official files; count their clients and examples."""
        self._provide(track)
        files = DATASETS[self.dataset]
        for part, clients, count in zip(
            ("train", "test"), files.clients, files.counts, strict=True
        ):
            path = self._path(part)
            examples, rows = _read(path, files, track)
            check_count(path, "clients", len(rows), clients)
            check_count(path, "examples", len(examples.labels), count)
        return Path(self.root)

    def load(self, seed: int) -> Dataset:
        """Read both files into bytes."""
        files = DATASETS[self.dataset]
        train, owned = _read(self._path("train"), files, quiet)
        test, tests = _read(self._path("test"), files, quiet)
        # CIFAR-100's test clients are others, though they have the same names.
        known, none = self.dataset != "cifar100", np.empty(0, dtype=np.int64)
        return Dataset(
            train=train,
            test=test,
            natural=list(owned.values()),
            natural_tests=[tests.get(name, none) for name in owned] if known else None,
            classes=files.classes,
            loss="cross_entropy",
            transform=self._transform(),
        )

    def _transform(self) -> Transform:
        if self.dataset != "cifar100":
            return Grey(self.flat)
        return CropFlipNormalize(mean=Cifar100.mean, std=Cifar100.std, augment=self.augment)

    def _path(self, part: str) -> Path:
        return Path(self.root) / f"{DATASETS[self.dataset].name}_{part}.h5"

    def _provide(self, track: Track) -> None:
        files = DATASETS[self.dataset]
        name = f"{files.name}.tar.bz2"
        members = {self._path(part).name: self._path(part).name for part in ("train", "test")}
        archive = Archive(name=name, url=f"{URL}/{name}", sha256=files.sha256, members=members)
        provide_members(Path(self.root), archive, track)


def _read(path: Path, files: Files, track: Track) -> tuple[Examples, dict[str, ExampleRows]]:
    """The examples of a file, client after client in the order of names, and each one's rows."""
    with open_examples(path) as group:
        names = sorted(group)
        parts = [_client(path, group, name, files) for name in track(names, path.name, len(names))]
    if not parts:
        raise DataError(f"{path}: the group 'examples' holds no client")
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    rows = consecutive_rows([len(own) for _, own in parts])
    owned = dict(zip(names, rows, strict=True))
    return Examples(torch.from_numpy(images), torch.from_numpy(labels)), owned


def _client(path: Path, group: Any, name: str, files: Files) -> tuple[NDArray[np.uint8], IntArray]:
    """A client's images uint8 [n, ...] and labels int64 [n]."""
    x, y = feature(path, group, name, files.inputs), feature(path, group, name, "label")
    for dataset, shape, kinds in ((x, files.shape, "fu"), (y, (), "iu")):
        if not dataset.shape or dataset.shape[1:] != shape or dataset.dtype.kind not in kinds:
            raise DataError(
                f"{path}: {dataset.name} is {dataset.dtype} of shape {dataset.shape}, expected "
                f"{'images' if shape else 'integers'} of shape {('n', *shape)}"
            )
    if len(x) != len(y) or not len(x):
        raise DataError(f"{path}: client {name!r} has {len(x)} images and {len(y)} labels")
    labels = y[()].astype(np.int64)
    require_classes(f"{path}: client {name!r}", labels, files.classes)
    if x.dtype == np.uint8:
        return x[()], labels
    try:
        return levels(x[()]), labels
    except ValueError as error:
        raise DataError(f"{path}: client {name!r}: {files.inputs} {error}") from error
