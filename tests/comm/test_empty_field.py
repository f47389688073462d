from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfl.comm.exact import ExactReduction
from hpcfl.comm.fast import FastReduction
from hpcfl.comm.solo import Solo


class Upload(NamedTuple):
    delta: Tensor
    none: Tensor


@pytest.mark.parametrize("kind", [ExactReduction, FastReduction])
def test_a_field_without_numbers_has_a_mean_without_numbers(kind):
    template = Upload(torch.empty(2, device="meta"), torch.empty(0, device="meta"))
    reduction = kind(Solo(), template, frozenset(), torch.float32, torch.device("cpu"))
    uploads = [Upload(torch.tensor([1.0, 2.0]), torch.empty(0)) for _ in range(3)]
    weights = [1.0, 1.0, 1.0]
    found = reduction.mean(uploads, [0, 1, 2], weights, 3.0, 3, np.zeros(0), round=1)
    assert found.mean.delta.tolist() == [1.0, 2.0]
    assert found.mean.none.shape == (0,)
