"""Digits: 1797 real handwritten digits of 8x8 pixels that come with scikit-learn."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.sources.arrays import cast
from hpcfl.errors import JobError
from hpcfl.io.packages import refuse_shadow
from hpcfl.types import Examples

_EXAMPLES = 1797
_TEST_EVERY = 5  # every fifth example is a test example, whatever the seed


@dataclass(frozen=True, kw_only=True)
class Digits(DataConfig):
    """Inputs in [0, 1] and 10 classes; needs no download.  Every fifth example is for tests."""

    names_clients: ClassVar[bool | None] = False

    flat: bool = True
    """Inputs are vectors [64]; otherwise images [1, 8, 8]."""

    def load(self, seed: int) -> Dataset:
        """Take the digits out of scikit-learn.

        Raises:
            JobError: it is not installed.
        """
        pixels, digits = _table()
        images = torch.from_numpy(pixels.astype(np.float32) / 16)
        inputs = images if self.flat else images.view(-1, 1, 8, 8)
        labels = torch.from_numpy(digits.astype(np.int64))
        test = torch.arange(len(labels)) % _TEST_EVERY == _TEST_EVERY - 1
        return Dataset(
            train=Examples(inputs[~test], labels[~test]),
            test=Examples(inputs[test], labels[test]),
            natural=None,
            classes=10,
            loss="cross_entropy",
            transform=cast,
        )


def _table() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixels [1797, 64] from 0 to 16 and digits [1797], as sklearn.datasets.load_digits has them.

    scikit-learn takes as long to import as torch, so its file is read without it; a version that
    keeps the file elsewhere is asked itself.

    Raises:
        JobError: it is not installed.
    """
    file = _file()
    if file is None:
        from sklearn.datasets import load_digits

        pixels, digits = load_digits(return_X_y=True)
        return pixels, digits
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1], rows[:, -1]


def _file() -> Path | None:
    """scikit-learn's file of digits; None where this version keeps it elsewhere.

    Raises:
        JobError: scikit-learn is not installed.
    """
    refuse_shadow("sklearn")
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise JobError("data.kind: digits needs scikit-learn; pip install 'hpcfl[demo]'")
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz"
    return file if file.is_file() else None
