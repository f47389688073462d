"""Read images from one packed HDF5 file, client by client.

    /                attributes format, classes, side, origin (see ``image_listing.py``)
    /train, /test    attribute missing: number of listed images that were left out
      bytes          uint8, the files of all images one after the other, contiguous
      offsets        int64 [n + 1], where each begins in ``bytes``
      labels         int64 [n]
      names          text [n], the files that they come from
    /train
      clients        int64 [N + 1], the row that each client's images begin at
      client_names   text [N]
    /test            where its images are known to be of clients
      clients        int64 [n], the client of each, -1 where it is none of train

What training needs is mapped into memory, so opening reads almost nothing.
"""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.encoded_images import DAMAGED, pixels, reason
from hpcfl.data.hdf5 import attribute, opened, strings
from hpcfl.data.partition import ExampleRows, rows_of_clients
from hpcfl.errors import DataError
from hpcfl.io.regular import open_binary
from hpcfl.types import Examples, IntArray

FORMAT = 3  # 2 kept texts where HDF5 has no checksum


class Packed:
    """The images of one split, uint8 [n, side, side, 3], decoded when they are read."""

    dtype = torch.uint8

    def __init__(
        self,
        path: Path,
        split: str,
        content: NDArray[np.uint8],
        offsets: IntArray,
        side: int,
        workers: int,
    ) -> None:
        self._path, self._split, self._content, self._offsets = path, split, content, offsets
        self._side = side
        self.shape: tuple[int, ...] = (len(offsets) - 1, side, side, 3)
        self.workers = workers

    def read(self, rows: IntArray) -> Tensor:
        """Decode these rows [B]; Pillow releases the GIL, so that threads decode in parallel.

        Raises:
            DataError: an image is damaged.
        """
        return torch.from_numpy(np.stack([self._decoded(int(row)) for row in rows]))

    def _decoded(self, row: int) -> NDArray[np.uint8]:
        begin, end = self._offsets[row], self._offsets[row + 1]
        try:
            return pixels(self._content[begin:end].tobytes(), self._side)
        except DAMAGED as error:
            with opened(self._path) as file:
                name = os.fsdecode(strings(self._path, file[self._split], "names")[row])
            raise DataError(
                f"{self._path}: row {row} of {self._split} ({name}) is damaged: {reason(error)}; "
                "remove the file and prepare it again"
            ) from error


class PackedSplit(NamedTuple):
    """A split's images and labels, and the number of images that were left out."""

    examples: Examples
    missing: int


class Contents(NamedTuple):
    """A packed file."""

    train: PackedSplit
    test: PackedSplit | None
    natural: list[ExampleRows]
    """The rows of each client."""
    natural_tests: list[ExampleRows] | None
    """The test images of each client; None: the file does not say whose they are."""
    classes: int


def read_packed(path: Path, side: int, workers: int) -> Contents:
    """Map a packed file.

    Args:
        path: the file.
        side: pixels of a row's sides; smaller images were packed as they are.
        workers: threads that decode.

    Raises:
        DataError: the file is damaged or of another format.
    """
    with opened(path) as file:
        found = attribute(file, "format"), attribute(file, "side")
        if found != (FORMAT, side):
            raise DataError(
                f"{path}: format {found[0]}, side {found[1]}; "
                f"expected {FORMAT} and {side}: remove it and prepare it again"
            )
        classes = int(attribute(file, "classes"))
        train = _split(path, file, "train", side, workers, classes)
        test = _split(path, file, "test", side, workers, classes) if "test" in file else None
        starts = mapped(path, file, "train/clients", np.int64)
        known = "test/clients" in file
        owners = mapped(path, file, "test/clients", np.int64) if known else None
    _check_ascending(path, "train/clients", starts, len(train.examples.labels))
    natural = [np.arange(a, b) for a, b in pairwise(starts.tolist())]
    tests = None if owners is None else _tests_of(path, owners, len(natural), test)
    return Contents(train, test, natural, tests, classes)


def _tests_of(
    path: Path, owners: IntArray, clients: int, test: PackedSplit | None
) -> list[ExampleRows]:
    """The test images of each of so many clients."""
    count = 0 if test is None else len(test.examples.labels)
    if len(owners) != count or (count and not -1 <= owners.min() <= owners.max() < clients):
        raise DataError(f"{path}: test/clients does not fit its images: the file is damaged")
    return rows_of_clients(np.arange(clients), owners)


def mapped(
    path: Path, file: Any, name: str, dtype: type[np.generic], dimensions: int = 1
) -> NDArray[Any]:
    """A contiguous dataset of the file as an array whose pages are read when they are used.

    Writing to the array does not change the file.

    Raises:
        DataError: it is of another type, in another file, or beyond the end of the file.
        KeyError: there is none.
    """
    found = file[name]
    at = found.id.get_offset() if isinstance(found, h5py.Dataset) else None
    whole = at is not None and found.dtype == dtype and Path(found.file.filename) == path
    if at is None or not whole or found.ndim != dimensions:
        raise DataError(f"{path}: {name} is no contiguous {np.dtype(dtype)} array of this file")
    if at + found.nbytes > path.stat().st_size:
        raise DataError(f"{path}: {name} reaches beyond the end of the file: it was cut off")
    # Copy-on-write: torch warns of arrays that cannot be written, and of a transform that works in
    # place only pages of this process change.
    with open_binary(path) as content:
        return np.memmap(content, dtype, "c", at, found.shape)


def checked_labels(path: Path, name: str, labels: IntArray, classes: int) -> Tensor:
    """The labels [n] as a tensor.

    Raises:
        DataError: one is no class; names its row.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataError(
            f"{path}: row {wrong[0]} of {name} is class {labels[wrong[0]]}, expected 0 to "
            f"{classes - 1}"
        )
    return torch.from_numpy(np.array(labels))


def _split(path: Path, file: Any, split: str, side: int, workers: int, classes: int) -> PackedSplit:
    content = mapped(path, file, f"{split}/bytes", np.uint8)
    offsets = mapped(path, file, f"{split}/offsets", np.int64)
    labels = mapped(path, file, f"{split}/labels", np.int64)
    if len(offsets) != len(labels) + 1:
        raise DataError(f"{path}: {len(offsets)} offsets for {len(labels)} labels in {split}")
    _check_ascending(path, f"{split}/offsets", offsets, len(content))
    images = Packed(path, split, content, offsets, side, workers)
    examples = Examples(images, checked_labels(path, f"{split}/labels", labels, classes))
    return PackedSplit(examples, int(attribute(file[split], "missing")))


def _check_ascending(path: Path, name: str, offsets: IntArray, end: int) -> None:
    """Check that offsets ascend strictly from 0 to ``end``."""
    if (
        len(offsets) < 2
        or offsets[0] != 0
        or offsets[-1] != end
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        raise DataError(f"{path}: {name} does not ascend from 0 to {end}: the file is damaged")
