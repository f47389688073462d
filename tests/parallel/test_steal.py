"""Clients that another rank than their owner trains: the same bits, and less for the busiest."""

import numpy as np
import pytest

from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

SIZES = [8, 10, 13, 16, 20, 24, 29, 35]
JOB = {
    "model": {"name": "logistic"},
    "cohort": {"kind": "bernoulli", "p": 0.5},
    "local": {"epochs": 2, "batch_size": 8, "lr": 0.1, "weight_decay": 1.0e-4},
    "rounds": 16,
    "balance": "steal",
    "checkpoint": {"every": 5},
    "evaluate": {"every": 4},
    "device": "cpu",
    "seed": 5,
}
METHODS = {
    "fedavg": {"algorithm": {"name": "fedavg"}},  # nothing to ship
    "fedhbm": {
        "algorithm": {"name": "fedhbm", "first": "random"},
        "evaluate": {"every": 4, "own": True, "clients": True},
        "diagnostics": {"consistency": True, "dissimilarity": True},
    },
    "scaffold": {"algorithm": {"name": "scaffold", "option": 1}, "store": {"dtype": "bfloat16"}},
    "localghb": {"algorithm": {"name": "localghb"}, "store": {"cache_gib": 0.0}},
    "adabest": {"algorithm": {"name": "adabest"}, "store": {"kind": "memory"}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Random examples in three classes."""
    file = tmp_path_factory.mktemp("data") / "skewed.npz"
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    y = draw.integers(0, 3, len(client))
    np.savez(file, x=draw.normal(size=(len(client), 6)) + y[:, None], y=y, client=client)
    return {"kind": "arrays", "path": str(file)}


@pytest.fixture(scope="module")
def play(data, tmp_path_factory):
    """Plays every method (or resumes them, where ``folder`` is given) on so many ranks."""

    def go(ranks, stop=0, folder=None, **changes):
        root = folder or tmp_path_factory.mktemp(f"on{ranks}")
        jobs = {name: {**JOB, "data": data, **own, **changes} for name, own in METHODS.items()}
        play_all(root, jobs, ranks, stop=stop)
        return {name: outcome(root / name) for name in METHODS}, root

    return go


@pytest.fixture(scope="module")
def alone(play):
    """Every method on one rank, by owners."""
    return play(1, balance="owner")[0]


@pytest.mark.parametrize(("ranks", "backend"), [(1, "auto"), (2, "mpi"), (3, "gloo")])
def test_the_same_bits_as_by_owners(alone, play, ranks, backend):
    assert play(ranks, comm={"backend": backend})[0] == alone


def test_stopped_and_resumed_on_other_numbers_of_ranks(alone, play):
    _, folder = play(3, stop=7)
    assert play(2, folder=folder)[0] == alone
