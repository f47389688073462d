"""What is measured of a round is the same on any number of ranks, resumed or not."""

import pytest

from tests.long_form import long_form
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

EVERYTHING = {"consistency": True, "drift": True, "dissimilarity": True}
# Of 9 clients at p = 0.15 a quarter of the rounds is empty, and many a rank has no client.
JOB = {
    "task": "digits",
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.1}, "clients": 9},
    "cohort": {"kind": "bernoulli", "p": 0.15},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
    "rounds": 30,
    "checkpoint": {"every": 7},
    "diagnostics": EVERYTHING,
    "device": "cpu",
    "seed": 11,
}
METHODS = {  # no full gradient, each client's, the cohort's
    "fedhbm": {"name": "fedhbm"},
    "scaffold": {"name": "scaffold", "option": 1},
    "mimemom": {"name": "mimemom"},
}
KEYS = {"consistency", "drift", "gradient_norm2", "dissimilarity_g2", "dissimilarity_b2"}


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Plays every method (or resumes them, where ``folder`` is given) on so many ranks."""

    def go(ranks, stop=0, folder=None):
        root = folder or tmp_path_factory.mktemp(f"on{ranks}")
        jobs = {name: {**JOB, "algorithm": algorithm} for name, algorithm in METHODS.items()}
        play_all(root, jobs, ranks, stop=stop, mpi=False)
        return {name: outcome(root / name) for name in METHODS}, root

    return go


@pytest.fixture(scope="module")
def alone(play):
    """Every method, uninterrupted on one rank."""
    found, _ = play(1)
    for run in found.values():
        last = [record for record in run.log if record.get("clients")][-1]
        assert set(last) >= KEYS
        assert {0, 1, 2} <= {record["clients"] for record in run.log[1:]}
    return found


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=long_form), 3])
def test_on_any_number_of_ranks(alone, play, ranks):
    assert play(ranks)[0] == alone


def test_stopped_and_resumed_on_other_numbers_of_ranks(alone, play):
    _, folder = play(3, stop=5)
    _, folder = play(1, stop=12, folder=folder)
    assert play(2, folder=folder)[0] == alone
