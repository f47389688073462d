"""What docs/explanation/limits.md names in place of what hpcfl does not do works."""

import signal
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn, zeros_like
from torch.nn.functional import cross_entropy

import hpcfl
from hpcfl.algorithms.base import Upload
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.errors import Stopped
from hpcfl.types import Scalar, Vector

pytestmark = pytest.mark.usefixtures("own_process")


@dataclass(frozen=True, kw_only=True)
class Quantised(FedAvg):
    """Uploads of 8 bits a number."""

    def finish(self, y, local, message, state, client):
        delta = message.x - y
        largest = delta.abs().amax()
        unit = largest / 127 + (largest == 0)
        return Upload((delta / unit).round() * unit), state


@dataclass(frozen=True, kw_only=True)
class Sparse(FedAvg):
    """The loss plus l1 times the sum of the weights' magnitudes."""

    l1: float = 0.001

    def direction(self, point, local, grad, client):
        return grad(point) + self.l1 * point.sign()


class Moments(NamedTuple):
    x: Vector
    m: Vector
    v: Vector
    k: Scalar
    change: Vector  # from the step by the gradient to Adam's


@dataclass(frozen=True, kw_only=True)
class LocalAdam(FedAvg):
    """Each client takes Adam's steps: the next start corrects the step by the gradient."""

    refuses_momentum: ClassVar[str] = "Adam has its own"

    def begin(self, message, state, client):
        zero = zeros_like(message.x)
        return Moments(message.x, zero, zero, message.x.new_zeros(()), zero)

    def start_point(self, y, local, client):
        return y + local.change

    def gradient_point(self, y, start, local, client):
        return start

    def update_local(self, local, step, client):
        k = local.k + 1
        m = 0.9 * local.m + 0.1 * step
        v = 0.999 * local.v + 0.001 * step * step
        adam = m / (1 - 0.9**k) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)
        return Moments(local.x, m, v, k, client.lr * (step - adam))

    def finish(self, y, local, message, state, client):
        return super().finish(y + local.change, local, message, state, client)


class Pretrained(nn.Module):
    """Batch normalisation by statistics that stay as they are."""

    def __init__(self, outputs):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, outputs)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Until(hpcfl.Callback):
    """End the run at an accuracy."""

    def __init__(self, accuracy):
        self.accuracy = accuracy

    def round(self, record, model):
        if record.get("test_accuracy", 0) >= self.accuracy:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def run(tmp_path):
    def play(**changes):
        given = {"rounds": 20, **changes.pop("overrides", {})}
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        return hpcfl.run("quickstart", given, out=out, **changes)

    return play


def test_uploads_of_8_bits(run):
    plain = run(overrides={"algorithm": {"name": "fedavg"}, "rounds": 1})
    quantised = run(overrides={"algorithm": {"name": Quantised}, "rounds": 1})
    apart = (plain.x - quantised.x).abs().max()
    assert 0 < apart < 0.01 * plain.x.abs().max()


def test_a_term_of_the_weights(run):
    plain = run(overrides={"algorithm": {"name": "fedavg"}})
    sparse = run(overrides={"algorithm": {"name": Sparse}})
    assert sparse.x.abs().sum() < plain.x.abs().sum()
    assert sparse.accuracy > 0.3


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_adam_in_the_local_steps(run, executor):
    random = np.random.default_rng(0)
    x, y = random.standard_normal((30, 5)), random.integers(3, size=30)
    net = nn.Linear(5, 3).double()
    overrides = {
        "algorithm": {"name": LocalAdam},
        "cohort": {"kind": "uniform", "size": 1},
        "local": {"epochs": 7, "batch_size": 30, "lr": 0.02},
        "executor": executor,
        "precision": "float64",
        "rounds": 1,
    }
    data = hpcfl.Data(train=(x, y), test=(x, y), owners=np.zeros(30, int))
    found = run(overrides=overrides, model=net, data=data).x

    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(7):
        optimiser.zero_grad()
        cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    expected = nn.utils.parameters_to_vector(net.parameters())
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)


def test_statistics_that_stay_as_they_are(run):
    assert run(model=Pretrained).accuracy > 0.3


def test_a_callback_ends_the_run(run):
    with pytest.raises(Stopped, match=r"after round \d+ of 100, with a checkpoint"):
        run(overrides={"rounds": 100}, callbacks=[Until(0.6)])
