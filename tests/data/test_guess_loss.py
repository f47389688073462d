"""The loss that a model has which knows nothing."""

import math

import pytest
import torch

from hpcfl.data.base import Dataset
from hpcfl.types import Examples


@pytest.mark.parametrize(
    ("labels", "classes", "loss", "guess"),
    [
        ([0, 9], 10, "cross_entropy", math.log(10)),
        ([3.0, 1.0], None, "squared", 2.5),
        ([[3.0, 1.0]], None, "squared", 5.0),
        ([0, 0], None, "quadratic", None),
    ],
)
def test_what_guessing_costs(labels, classes, loss, guess):
    rows = Examples(torch.zeros(len(labels), 1), torch.tensor(labels))
    dataset = Dataset(rows, None, None, classes, loss, lambda x, dtype, draws: x)
    assert dataset.guess_loss == guess
