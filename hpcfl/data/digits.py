"""Digits: 1797 real handwritten digits of 8x8 pixels that come with scikit-learn."""

from dataclasses import dataclass

import numpy as np
import torch

from hpcfl.data.arrays import cast
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.errors import JobError
from hpcfl.types import Examples

_FOLDS = 5  # the same split as any other seed would find: part of the data set's definition


@dataclass(frozen=True, kw_only=True)
class Digits(DataConfig):
    """Inputs in [0, 1] and 10 classes; needs no file.  Every fifth example is a test example."""

    flat: bool = True
    """Inputs are vectors [64]; otherwise images [1, 8, 8]."""

    def load(self, seed: int) -> Dataset:
        """Take the digits out of scikit-learn.

        Raises:
            JobError: it is not installed.
        """
        # Imported here: scikit-learn takes longer to import than everything else together.
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise JobError(
                f"data.kind: digits needs scikit-learn: {error}; pip install 'hpcfl[demo]'"
            ) from error

        pixels, digits = load_digits(return_X_y=True)
        images = torch.from_numpy(pixels.astype(np.float32) / 16)
        inputs = images if self.flat else images.view(-1, 1, 8, 8)
        labels = torch.from_numpy(digits.astype(np.int64))
        test = torch.arange(len(labels)) % _FOLDS == _FOLDS - 1
        return Dataset(
            train=Examples(inputs[~test], labels[~test]),
            test=Examples(inputs[test], labels[test]),
            natural=None,
            classes=10,
            loss="cross_entropy",
            transform=cast,
        )
