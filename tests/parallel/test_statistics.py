"""Running statistics are the same bits on one, two and three ranks, also after a stop."""

import pytest
from torch import nn

from tests.algorithms.play import softmax_problem, tree
from tests.long_form import long_form
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome


class Normed(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, outputs))


COMMON = {
    "cohort": {"kind": "replay", "rounds": [[0, 1, 4], [], [2, 3, 5], [0, 2, 3, 4]]},
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.3},
    "precision": "float32",
    "rounds": 4,
    "evaluate": {"every": 1, "train": True},
    "checkpoint": {"every": 1, "keep": 9},
}
JOBS = {
    "mean": ("mean", {}),
    "mean-stolen": ("mean", {"algorithm": {"name": "fedhbm"}, "balance": "steal"}),
    "mean-full": ("mean", {"algorithm": {"name": "mime"}}),
    "mean-block": ("mean", {"executor": "block", "block_size": 2}),
    "local": ("local", {"evaluate": {"every": 1, "personal": True}, "balance": "steal"}),
    "local-block": ("local", {"executor": "block", "block_size": 2}),
    "fedbn": ("local", {"algorithm": {"name": "fedbn"}, "store": {"cache_gib": 0.0}}),
}


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    def go(ranks, **how):
        root = tmp_path_factory.mktemp(f"on{ranks}")
        jobs = {}
        for name, (statistics, own) in JOBS.items():
            model = {"name": "module", "of": f"{__name__}.Normed", "statistics": statistics}
            changes = {**COMMON, "model": model, **own}
            algorithm = changes.pop("algorithm", {"name": "fedavg"})
            jobs[name] = tree(root, softmax_problem((3, 8, 6, 12, 7, 2)), algorithm, **changes)
        play_all(root, jobs, ranks, **how)
        return {name: outcome(root / name) for name in JOBS}, root

    return go


@pytest.fixture(scope="module")
def alone(play):
    """The outcomes on one rank."""
    return play(1)[0]


@pytest.mark.parametrize(("ranks", "mpi"), [(2, True), pytest.param(3, False, marks=long_form)])
def test_on_every_number_of_ranks(play, alone, ranks, mpi):
    assert play(ranks, mpi=mpi)[0] == alone


def test_after_a_stop(play, alone):
    """Three ranks go on from what two left."""
    _, root = play(2, stop=2, mpi=False)
    play_all(root, {name: {} for name in JOBS}, 3, mpi=False)
    assert {name: outcome(root / name) for name in JOBS} == alone
