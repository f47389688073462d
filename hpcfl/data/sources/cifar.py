"""The base of CIFAR-10 and CIFAR-100: 32x32 colour images in pickles or an .npz."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.archives import Archive, provide_members
from hpcfl.data.base import Dataset
from hpcfl.data.colour import Coloured
from hpcfl.data.download import Track, check_count, quiet, require_digest
from hpcfl.data.images import CropFlipNormalize, Mean, Std
from hpcfl.data.labels import require_integers
from hpcfl.data.prepared_file import prepare_command
from hpcfl.errors import DataError
from hpcfl.io.files import read_arrays, read_error
from hpcfl.io.regular import read as read_bytes
from hpcfl.types import Examples, PathText

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_NAMES = {  # all that a pickle of lists and of an array of bytes names
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),  # of numpy 1, which made the official files
    ("numpy._core.multiarray", "_reconstruct"),
}


class CifarFiles(NamedTuple):
    """The files and numbers of one of the two data sets, as it is published."""

    name: str
    """The name of the .npz, also in messages."""
    url: str
    """Where the official archive is."""
    md5: str
    folder: str
    """The official folder, as the archive holds it."""
    train: Mapping[str, str]
    """The md5 of each of its files of training examples, in order."""
    test: Mapping[str, str]
    """The md5 of its file of test examples."""
    labels: str
    """The key of the labels in a file."""
    classes: int
    counts: tuple[int, int] = (50_000, 10_000)
    """Numbers of training and test examples."""

    @property
    def archive(self) -> Archive:
        """The official archive."""
        files = [f"{self.folder}/{name}" for name in (*self.train, *self.test)]
        return Archive(
            name=self.url.rpartition("/")[2],
            url=self.url,
            md5=self.md5,
            members={file: file for file in files},
        )


@dataclass(frozen=True, kw_only=True)
class Cifar(Coloured):
    """Images uint8 [n, 32, 32, 3] and labels; training images are cropped and flipped."""

    names_clients: ClassVar[bool | None] = False
    layout: ClassVar[CifarFiles]

    root: PathText = "data"
    """The folder that holds the official folder or an .npz: see docs/data/README.md."""
    download: bool = False
    """Fetch the official files into root, unless they or the .npz are there."""
    augment: bool = True
    """Crop training images from a padding of 4 and flip them, per image."""
    mean: Mean
    """The mean of red, green and blue in [0, 1], subtracted from the pixels; by default that of the
    training images."""
    std: Std
    """The deviation of red, green and blue, by which pixels are divided then; by default that of
    the training images."""

    def fetch(self) -> None:
        """Download the official files if the job says so, unless they or the .npz are there."""
        if self.download and self._reads_official_files:
            provide_members(Path(self.root), self.layout.archive, quiet)

    def prepare(self, track: Track) -> Path:
        """Fetch and unpack the official files, unless they or the .npz are there; count all."""
        root, layout = Path(self.root), self.layout
        place = root / f"{layout.name}.npz"
        if self._reads_official_files:
            provide_members(root, layout.archive, track)
            place = root / layout.folder
        for part, what, count in zip(
            read(root, layout), ("training", "test"), layout.counts, strict=True
        ):
            check_count(place, f"{what} examples", len(part.labels), count)
        return place

    def load(self, seed: int) -> Dataset:
        """Read the official pickles, or the .npz."""
        layout = self.layout
        train, test = read(Path(self.root), layout)
        transform = self._transform()
        return Dataset(
            train=train,
            test=test,
            natural=None,
            classes=layout.classes,
            loss="cross_entropy",
            transform=transform,
            personal=self.personal(transform, seed),
        )

    @property
    def _reads_official_files(self) -> bool:
        """Whether the examples are those of the official files, there or not, not of the .npz."""
        root, layout = Path(self.root), self.layout
        return (root / layout.folder).exists() or not (root / f"{layout.name}.npz").is_file()

    def _transform(self) -> CropFlipNormalize:
        return CropFlipNormalize(mean=self.mean, std=self.std, augment=self.augment)


def read(root: Path, layout: CifarFiles) -> tuple[Examples, Examples]:
    """The training and test examples: uint8 [n, 32, 32, 3] and int64 [n].

    Raises:
        DataError: neither the folder nor the .npz is in ``root``, or it is damaged.
    """
    official = root / layout.folder
    if official.is_dir():
        return _official(official, layout.train, layout), _official(official, layout.test, layout)
    path = root / f"{layout.name}.npz"
    if not path.is_file():
        raise DataError(
            f"{root}: found neither {layout.folder}/ nor {path.name}; put one there, set data.root "
            f"to where it is, or say {prepare_command(layout.name, root)}"
        )
    arrays = read_arrays(path, _KEYS)
    x_train, y_train, x_test, y_test = (arrays[key] for key in _KEYS)
    return (
        _examples(f"{path}: x_train, y_train", x_train, y_train, layout.classes),
        _examples(f"{path}: x_test, y_test", x_test, y_test, layout.classes),
    )


class _Unpickler(pickle.Unpickler):
    """Imports nothing but what the official files name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it wants {module}.{name}, which is no array")
        return super().find_class(module, name)


def _official(folder: Path, files: Mapping[str, str], layout: CifarFiles) -> Examples:
    """Some of the official files, by their md5: rows of 3072 bytes, channel by channel.

    Raises:
        DataError: one is missing, or another than the publisher's: that is not unpickled.
    """
    pixels, labels = [], []
    for name, md5 in files.items():
        path = folder / name
        try:
            content = read_bytes(path)
        except OSError as error:
            message = f"{path}: cannot be read: {error.strerror or error}"
            raise read_error(error, message, DataError) from error
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        require_digest(path, "md5", found, md5)
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        pixels.append(batch[b"data"].reshape(-1, 3, 32, 32))
        labels.append(batch[layout.labels.encode()])
    where = f"{folder}/{', '.join(files)}"
    return _examples(where, np.concatenate(pixels), np.concatenate(labels), layout.classes)


def _examples(where: str, x: NDArray[Any], y: NDArray[Any], classes: int) -> Examples:
    """Checked tensors; images are turned to [n, 32, 32, 3]."""
    if x.dtype != np.uint8 or x.shape[1:] not in ((3, 32, 32), (32, 32, 3)):
        raise DataError(
            f"{where}: images are {x.dtype} of shape {x.shape}, expected uint8 [n, 3, 32, 32] or "
            "[n, 32, 32, 3]"
        )
    require_integers(where, y, len(x))
    if y.min() < 0 or y.max() >= classes:
        raise DataError(
            f"{where}: labels run from {y.min()} to {y.max()}, expected 0 to {classes - 1}"
        )
    last = x if x.shape[3] == 3 else x.transpose(0, 2, 3, 1)
    return Examples(
        torch.from_numpy(np.ascontiguousarray(last)), torch.from_numpy(y.astype(np.int64))
    )
