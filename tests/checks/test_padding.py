"""A method of the user's that counts the padding of a batch is told before round 1."""

import pytest

METHODS = """\
from dataclasses import dataclass

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedhbm import FedHBM


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


def test_batches_of_one_are_never_padded(notes):
    assert notes("Counted", "local.batch_size=1") == []
