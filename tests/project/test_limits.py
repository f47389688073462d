"""What docs/explanation/limits.md names in place of what hpcfl does not do works."""

from dataclasses import dataclass

import pytest
from torch import nn

import hpcfl
from hpcfl.algorithms.base import Upload
from hpcfl.algorithms.fedavg import FedAvg

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
        return grad(point) + self.l1 * point.sign(), local


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


def test_statistics_that_stay_as_they_are(run):
    assert run(model=Pretrained).accuracy > 0.3
