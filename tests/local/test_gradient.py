"""The gradient at a flat vector: torch's own, clipped, masked, whole, and in low precision."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hpcfl.local.grad import StepGrad
from hpcfl.local.gradient import Gradient, clipped
from hpcfl.models.dropout import Dropout, replace_dropout
from hpcfl.models.flat_vector import flatten, load, parameters
from hpcfl.models.losses import TermLoss
from hpcfl.types import Batch

torch.set_num_threads(1)


def network(dropout=0.0, dtype=torch.float64):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.GroupNorm(2, 8), nn.Linear(8, 3)]
    return nn.Sequential(*layers).to(dtype)


def batch(seed, n=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 6, generator=generator, dtype=dtype)
    return Batch(inputs, torch.randint(3, (n,), generator=generator))


def truth(x, examples, model=None):
    """By torch, on a model of its own."""
    model = model or network(dtype=x.dtype)
    load(model, x)
    value = cross_entropy(model(examples.inputs), examples.labels)
    return value.detach(), flatten(torch.autograd.grad(value, list(model.parameters())))


def points(count, dtype=torch.float64):
    x = parameters(network(dtype=dtype))
    return [x + 0.1 * k * torch.randn(len(x), dtype=dtype) for k in range(count)]


def test_equals_torch_bit_for_bit():
    """At one point after the other, and back."""
    gradient = Gradient(network(), cross_entropy)
    x = points(3)
    for point, seed in [(x[0], 1), (x[1], 1), (x[2], 2), (x[0], 3)]:
        found = gradient.stochastic(point, batch(seed), 0)
        for ours, theirs in zip(found, truth(point, batch(seed)), strict=True):
            assert torch.equal(ours, theirs)


def test_follows_a_vector_that_changes_in_place():
    """The executor's y does, after every step."""
    gradient = Gradient(network(), cross_entropy)
    y = points(1)[0].clone()
    for step in range(3):
        _, grad = gradient.stochastic(y, batch(step), 0)
        assert torch.equal(grad, truth(y.clone(), batch(step))[1])
        y.add_(grad, alpha=-0.5)


def test_leaves_the_point_alone():
    gradient, (x,) = Gradient(network(), cross_entropy), points(1)
    before = x.clone()
    gradient.stochastic(x, batch(0), 0)
    gradient.full((x,), [(5, batch(0))])
    gradient.predict(x, batch(0).inputs)
    assert torch.equal(x, before)
    assert not x.requires_grad


def test_clips_the_norm():
    x = points(2)[1]
    whole = truth(x, batch(0))[1]
    tight = Gradient(network(), cross_entropy, clip=0.25 * float(whole.norm()))
    _, clipped = tight.stochastic(x, batch(0), 0)
    torch.testing.assert_close(clipped, 0.25 * whole, rtol=1e-12, atol=0)
    loose = Gradient(network(), cross_entropy, clip=1.01 * float(whole.norm()))
    assert torch.equal(loose.stochastic(x, batch(0), 0)[1], whole)
    (full,) = tight.full((x,), [(5, batch(0))])  # full gradients are not clipped
    torch.testing.assert_close(full, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(10,), (3, 10)])
def test_clips_a_gradient_whose_squares_are_beyond_float32(shape):
    """To the norm that was asked for, not to zero: the client would stand still."""
    found = clipped(torch.full(shape, 1e25), 0.5)
    torch.testing.assert_close(found.norm(dim=-1), torch.full(shape[:-1], 0.5))
    assert clipped(torch.full(shape, math.inf), 0.5).isnan().all()  # it has diverged


def test_a_gradient_is_clipped_alike_whatever_the_block_s_other_clients_have():
    one = torch.randn(1000)
    beside = [clipped(torch.stack([one, other]), 0.5)[0] for other in (-one, 1e25 * one)]
    assert torch.equal(*beside)


def test_clips_nothing_of_a_zero_gradient():
    model = nn.Linear(2, 1, bias=False).double()
    gradient = Gradient(model, TermLoss("squared", lambda out, _: 0 * out.sum(1)), clip=1.0)
    _, grad = gradient.stochastic(torch.ones(2).double(), Batch(torch.ones(1, 2).double(), None), 0)
    assert torch.equal(grad, torch.zeros(2).double())


def test_a_full_gradient_is_that_of_the_mean():
    """Over batches of unequal sizes, without dropout."""
    gradient = Gradient(network(dropout=0.5), cross_entropy)
    x = points(2)[1]
    whole = batch(0, 11)
    split = [(4, Batch(whole.inputs[:4], whole.labels[:4])), (6, Batch(whole.inputs[4:10],
              whole.labels[4:10])), (1, Batch(whole.inputs[10:], whole.labels[10:]))]  # fmt: skip
    (found,) = gradient.full((x,), iter(split))
    torch.testing.assert_close(found, truth(x, whole)[1], rtol=1e-12, atol=1e-14)
    # at several points, in one pass over the batches, the bits of each alone
    there = 0.5 * x
    assert torch.equal(gradient.full((there,), split)[0], gradient.full((x, there), split)[1])
    assert torch.equal(gradient.full((x, there), iter(split))[0], found)
    # and dropout is on again afterwards
    assert not torch.equal(gradient.stochastic(x, whole, 0)[1], truth(x, whole)[1])


def images(n):
    pixels = torch.randn(n, 3, 19, 17).to(memory_format=torch.channels_last)
    return Batch(pixels, torch.randint(3, (n,)))


ODD = nn.Sequential(
    nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(1785, 3)
)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("how", [{}, {"bf16": True}])
def test_a_step_in_place_has_the_bits_of_one_along_the_whole_gradient(how, decay):
    """Parameters of sizes that no vector of a processor divides."""
    torch.manual_seed(0)
    replace_dropout(ODD)
    gradient, y = Gradient(ODD, cross_entropy, **how), parameters(ODD)
    for step in range(3):
        examples = images(5)
        loss, grad = gradient.stochastic(y.clone(), examples, step)
        expected = torch.add(y, grad.add(y, alpha=decay) if decay else grad, alpha=-0.1)
        assert torch.equal(gradient.descend(y, examples, step, 0.1, decay), loss)
        assert torch.equal(y, expected)


def models_with_dropout():
    inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, inputs):
            return self.inner(nn.functional.dropout(inputs, 0.5, self.training))

    return {
        "torch's Dropout": nn.Sequential(nn.Dropout(0.5), inner),
        "Dropout": nn.Sequential(Dropout(nn.Dropout(0.5), 0), inner),
        "Dropout1d": nn.Sequential(nn.Dropout1d(0.5), inner),
        "AlphaDropout": nn.Sequential(nn.AlphaDropout(0.5), inner),
        "functional": Functional(),
    }


@pytest.mark.parametrize("kind", models_with_dropout())
def test_one_mask_a_step(kind):
    """The same within a step whatever was drawn between, another in the next step."""
    model = models_with_dropout()[kind].double()
    x, examples = parameters(model), batch(0, 20)
    gradient = Gradient(model, cross_entropy)
    first = StepGrad(gradient.on(examples, 1))
    torch.manual_seed(99)
    once = first(x)
    torch.rand(3)
    assert torch.equal(first(x), once)
    torch.manual_seed(100)
    assert torch.equal(StepGrad(gradient.on(examples, 1))(x), once)
    assert not torch.equal(StepGrad(gradient.on(examples, 2))(x), once)


def test_the_oracle_keeps_the_loss_of_the_first_point():
    x = points(2)
    oracle = StepGrad(Gradient(network(), cross_entropy).on(batch(0), 0))
    assert oracle.loss is None
    oracle(x[0])
    oracle(x[1])
    assert oracle.loss == truth(x[0], batch(0))[0]


def test_bf16_computes_in_bf16_and_keeps_float32():
    low = Gradient(network(dtype=torch.float32), cross_entropy, bf16=True)
    x, examples = points(2, torch.float32)[1], batch(0, 16, torch.float32)
    _, grad = low.stochastic(x, examples, 0)
    _, exact = truth(x, examples)
    assert grad.dtype == torch.float32
    assert not torch.equal(grad, exact)
    assert (grad - exact).norm() < 0.03 * exact.norm()
    assert low.predict(x, examples.inputs).dtype == torch.bfloat16


def test_bf16_sees_a_point_that_changed_in_place():
    """Autocast keeps cast weights; not from one step to the next."""
    low = Gradient(network(dtype=torch.float32), cross_entropy, bf16=True)
    y, examples = points(1, torch.float32)[0].clone(), batch(0, 16, torch.float32)
    _, before = low.stochastic(y, examples, 0)
    y.mul_(3)
    _, after = low.stochastic(y, examples, 0)
    fresh = Gradient(network(dtype=torch.float32), cross_entropy, bf16=True)
    assert torch.equal(after, fresh.stochastic(y.clone(), examples, 0)[1])
    assert not torch.equal(after, before)
