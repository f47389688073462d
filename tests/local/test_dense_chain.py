"""Chains of dense layers without autograd's graph: autograd's own bits."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from hpcfl.local.dense_chain import DenseChain
from hpcfl.local.gradient import Gradient
from hpcfl.models.flat_vector import parameters, trained
from hpcfl.models.losses import LOSSES
from hpcfl.types import Batch

CROSS_ENTROPY = LOSSES["cross_entropy"]
SIZES = (
    *((64, 10), (784, 62), (784, 200, 200, 62)),
    *((5, 1), (1, 3), (3, 1, 2), (5, 1, 62), (2000, 7, 33)),
)


def chain(sizes, bias=True):
    """Dense layers with ReLU between them, behind nn.Flatten."""
    layers = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU(inplace=after % 2 == 0)]
    return nn.Sequential(*layers[:-1])


def batch_of(sizes, rows, dtype=torch.float32):
    return Batch(torch.randn(rows, sizes[0], dtype=dtype), torch.randint(sizes[-1], (rows,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("rows", [1, 2, 20, 63])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_bits_of_autograd(sizes, rows, bias, dtype):
    torch.manual_seed(0)
    model = chain(sizes, bias).to(dtype)
    gradient = Gradient(model, CROSS_ENTROPY)
    point = parameters(model)
    for _ in range(3):
        batch = batch_of(sizes, rows, dtype)
        found, grad = gradient.stochastic(point, batch, 0)
        loss = CROSS_ENTROPY(model(batch.inputs), batch.labels)
        grads = torch.autograd.grad(loss, [*trained(model).values()])
        assert torch.equal(found, loss.detach())
        assert torch.equal(grad, torch.cat([g.reshape(-1) for g in grads]))
        point = point - 0.1 * grad


def test_no_graph_is_built(monkeypatch):
    """So the test above compares two ways."""
    model = chain((6, 4, 3))
    gradient = Gradient(model, CROSS_ENTROPY)
    monkeypatch.setattr("torch.autograd.grad", None)
    gradient.stochastic(parameters(model), batch_of((6, 3), 2), 0)


def with_hook(model, register):
    getattr(model[1], register)(lambda *_: None)
    return model


def with_parameter_hook(model):
    model[1].weight.register_hook(lambda gradient: 2 * gradient)
    return model


def frozen(model):
    model[1].weight.requires_grad_(requires_grad=False)
    return model


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


class Backwards(nn.Sequential):
    def forward(self, inputs):
        return super().forward(-inputs)


@pytest.mark.parametrize(
    "model",
    [
        with_hook(chain((4, 4)), "register_forward_hook"),
        with_hook(chain((4, 4)), "register_forward_pre_hook"),
        with_hook(chain((4, 4)), "register_full_backward_hook"),
        with_hook(chain((4, 4)), "register_full_backward_pre_hook"),
        with_parameter_hook(chain((4, 4))),
        frozen(chain((4, 4))),
        shared(),
        nn.Sequential(Doubled(4, 4)),
        Backwards(nn.Linear(4, 4)),
        nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4))),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 4)),
        chain((4, 1, 4)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)),
        nn.Sequential(nn.ReLU()),
    ],
)  # fmt: skip
def test_other_models_are_left_to_autograd(model):
    assert DenseChain.of(model, CROSS_ENTROPY, [*trained(model).values()]) is None


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"cross_entropy"}))
def test_other_losses_are_left_to_autograd(name):
    model = chain((4, 4))
    assert DenseChain.of(model, LOSSES[name], [*trained(model).values()]) is None


def test_other_batches_are_left_to_autograd():
    """Probabilities as labels; rows of rows."""
    model = nn.Sequential(nn.Linear(4, 4))
    found = DenseChain.of(model, CROSS_ENTROPY, [*trained(model).values()])
    assert found is not None
    assert found.takes(Batch(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)))
    assert not found.takes(Batch(torch.zeros(2, 4), torch.zeros(2, 4)))
    assert not found.takes(Batch(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long)))
