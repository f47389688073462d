"""A method of the user's that counts the padding of a batch is told before round 1."""

from typing import get_args

import pytest

from hpcfl.job.schema import Precision
from hpcfl.start.checks.padding import _TOLERANCE

METHODS = """\
from dataclasses import dataclass

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedhbm import FedHBM
from hpcfl.algorithms.mime import Mime
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Left(FedAvg):
    def direction(self, point, local, grad, client):
        def terms(made):
            present = made.present[:, None]
            mean = (present * made.outputs).sum(0) / present.sum()
            return made.losses + (made.outputs - mean).square().sum(1)

        return grad(point, terms), local


@dataclass(frozen=True, kw_only=True)
class Counted(FedAvg):
    def direction(self, point, local, grad, client):
        def terms(made):
            return made.losses + (made.outputs - made.outputs.mean(0)).square().sum(1)

        return grad(point, terms), local


class Other(FedHBM):
    pass


class Plain(FedAvg):
    pass


@dataclass(frozen=True, kw_only=True)
class Divided(Mime):
    def direction(self, point, local, grad, client):
        own, local = super().direction(point, local, grad, client)
        return own / client.full_grad.norm(), local


def normed():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
"""
COUNTS = "if its hooks sum over the batch, multiply by forward.present"


@pytest.fixture
def notes(tmp_path, monkeypatch, job, hpcfl):
    (tmp_path / "padding.py").write_text(METHODS)
    monkeypatch.syspath_prepend(tmp_path)

    def found(method, *settings):
        asked = f"algorithm={{name: padding.{method}}}"
        done = hpcfl("check", "--data", job, asked, "executor=block", *settings)
        assert done.code == 0
        return [line for line in done.out if COUNTS in line]

    return found


@pytest.mark.parametrize("precision", ["float64", "float32", "bf16"])
def test_padding_that_counts_is_told(notes, precision):
    (line,) = notes("Counted", f"precision={precision}")
    assert "padding.Counted" in line
    assert notes("Left", f"precision={precision}") == []


def test_a_client_at_a_time_has_no_padding(notes):
    assert notes("Counted", "executor=sequential") == []


@pytest.mark.parametrize("settings", [["local.batch_size=full"], ["local.clip=0.1"]])
def test_a_method_that_counts_none(notes, settings):
    assert notes("Other", *settings) == []


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_what_is_rounding_alone_is_not_told(notes, optimizer):
    """A bias before a normalisation, of which these optimisers make a whole step."""
    settings = ["model={name: module, of: padding.normed}", "local.batch_size=full"]
    assert notes("Plain", f"local.optimizer={optimizer}", *settings) == []


def test_what_is_not_finite_is_not_told(notes):
    assert notes("Divided") == []


def test_every_precision_has_a_tolerance():
    assert {*_TOLERANCE} == {*get_args(Precision)}


def test_batches_of_one_are_never_padded(notes):
    assert notes("Counted", "local.batch_size=1") == []
