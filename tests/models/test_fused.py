"""Layers that are called together give the bits of each in turn."""

import pytest
import torch
from torch import nn
from torch.nn.functional import relu
from torch.overrides import TorchFunctionMode

from hpcfl.models.fused import norm_relu


class Noted(TorchFunctionMode):
    """Notes the functions that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.BatchNorm2d(4)])
def test_a_norm_and_a_relu_are_one_function_of_a_mode(norm, residual):
    images, other = torch.randn(2, 3, 4, 5, 5, requires_grad=True)
    added = other if residual else None
    expected = relu(norm(images) + other if residual else norm(images))
    alone = norm_relu(norm, images, added)
    with Noted() as mode:
        inside = norm_relu(norm, images, added)
    wanted = torch.autograd.grad(expected.square().sum(), norm.weight)
    for found in (alone, inside):
        assert torch.equal(found, expected)
        assert torch.equal(*torch.autograd.grad(found.square().sum(), norm.weight), *wanted)
    assert (norm_relu in mode.seen) == (type(norm) is nn.GroupNorm)
    assert (relu in mode.seen) == (norm_relu not in mode.seen)
