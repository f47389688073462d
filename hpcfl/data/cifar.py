"""What CIFAR-10 and CIFAR-100 have in common: 32x32 colour images in pickles or an .npz."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.files import read_arrays
from hpcfl.data.unpickle import unpickle
from hpcfl.data.vision import torchvision
from hpcfl.errors import DataError
from hpcfl.types import Examples

_KEYS = ("x_train", "y_train", "x_test", "y_test")


def read(
    root: Path, name: str, folder: str, train: tuple[str, ...], test: str, labels: str, classes: int
) -> tuple[Examples, Examples]:
    """The training and test examples: uint8 [n, 32, 32, 3] and int64 [n].

    Args:
        root: holds ``folder``, or NAME.npz with x_train, y_train, x_test and y_test.
        name: "cifar10" or "cifar100".
        folder: the official folder, as torchvision unpacks it.
        train: its files of training examples, in order.
        test: its file of test examples.
        labels: which entry of a file holds the labels.
        classes: how many there are.

    Raises:
        DataError: neither is there, or it is not what it should be.
    """
    if (root / folder).is_dir():
        parts = [_pickled(root / folder / part, labels, classes) for part in train]
        inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Examples(inputs, targets), _pickled(root / folder / test, labels, classes)
    path = root / f"{name}.npz"
    if not path.is_file():
        raise DataError(
            f"{root}: found neither {folder}/ nor {path.name}; put one there, set data.root to "
            "where it is, or set data.download to true"
        )
    arrays = read_arrays(path, _KEYS)
    return (
        _examples(f"{path}: x_train, y_train", arrays["x_train"], arrays["y_train"], classes),
        _examples(f"{path}: x_test, y_test", arrays["x_test"], arrays["y_test"], classes),
    )


def download(root: Path, dataset: str) -> None:
    """Let torchvision fetch the official files into ``root``, unless they are there.

    Raises:
        DataError: the download failed.
    """
    make = getattr(torchvision().datasets, dataset)
    try:
        make(root, download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{root}: {dataset} could not be downloaded: {error}") from error


def _pickled(path: Path, labels: str, classes: int) -> Examples:
    """One official file: rows of 3072 bytes, channel by channel."""
    content = unpickle(path)
    for key in ("data", labels):
        if key not in content:
            raise DataError(f"{path}: no {key!r}; found {', '.join(content) or 'nothing'}")
    pixels = content["data"]
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise DataError(f"{path}: 'data' is not an array of rows of 3072 bytes")
    try:
        targets = np.asarray(content[labels])
    except ValueError as error:
        raise DataError(f"{path}: {labels!r} is not a list of integers") from error
    return _examples(str(path), pixels.reshape(-1, 3, 32, 32), targets, classes)


def _examples(where: str, x: NDArray[Any], y: NDArray[Any], classes: int) -> Examples:
    """Checked tensors; images are turned to [n, 32, 32, 3]."""
    if x.dtype != np.uint8 or x.shape[1:] not in ((3, 32, 32), (32, 32, 3)):
        raise DataError(
            f"{where}: images are {x.dtype} of shape {x.shape}, expected uint8 [n, 3, 32, 32] or "
            "[n, 32, 32, 3]"
        )
    if y.shape != (len(x),) or y.dtype.kind not in "iu" or not len(y):
        raise DataError(
            f"{where}: labels are {y.dtype} of shape {y.shape}, expected {len(x)} integers"
        )
    if y.min() < 0 or y.max() >= classes:
        raise DataError(
            f"{where}: labels run from {y.min()} to {y.max()}, expected 0 to {classes - 1}"
        )
    last = x if x.shape[3] == 3 else x.transpose(0, 2, 3, 1)
    return Examples(
        torch.from_numpy(np.ascontiguousarray(last)), torch.from_numpy(y.astype(np.int64))
    )
