"""Every algorithm: the same bits on 1, 2 and 3 ranks, stopped and resumed on other numbers."""

from itertools import combinations

import pytest

from tests.algorithms.methods import ALL, SAMPLE, WHOLE
from tests.algorithms.play import softmax_problem, tree
from tests.long_form import long_form
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

# On 3 ranks some have no client in a round; one round is empty.
COHORTS = {"kind": "replay", "rounds": [[1, 4], [0, 1, 2, 3, 4, 5], [], [5], [2, 4], [0, 1, 3]]}
SPREAD = [name for name in SAMPLE if name != "centralized"]


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Plays algorithms on so many ranks, or resumes the stopped runs that ``folder`` holds.

    Those whose names have an odd number of letters in bf16.  Centralised training has one client,
    so one rank.
    """

    def go(ranks, names=SPREAD, *, stop=0, folder=None, backend="gloo"):
        root = folder or tmp_path_factory.mktemp(f"on{ranks}")
        jobs = {}
        for name in names:
            precision = ("float32", "bf16")[len(name) % 2]
            comm = {"backend": backend}
            local = {"epochs": 2, "batch_size": 4, "lr": 0.3, "lr_decay": 0.9, "weight_decay": 0.01}
            jobs[name] = tree(root, softmax_problem(), ALL[name], local=local, comm=comm)
            if name != "centralized":
                jobs[name]["precision"] = precision
            if ALL[name]["name"] not in WHOLE:
                jobs[name]["cohort"] = COHORTS
        play_all(root, jobs, ranks, stop=stop, mpi=backend == "mpi")
        return root

    return go


@pytest.fixture(scope="module")
def alone(play):
    """Every algorithm, uninterrupted on one rank."""
    return play(1, SAMPLE)


def test_they_differ(alone):
    """Two entries that give the same model would test one algorithm less."""
    models = {name: outcome(alone / name).server["x"] for name in SAMPLE}
    same = {frozenset({a, b}) for a, b in combinations(models, 2) if models[a] == models[b]}
    assert same == {frozenset({"fedavg", "mimelite"})}


@long_form
@pytest.mark.parametrize(("ranks", "backend"), [(2, "mpi"), (3, "gloo")])
def test_on_any_number_of_ranks(alone, play, ranks, backend):
    many = play(ranks, backend=backend)
    for name in SPREAD:
        assert outcome(many / name) == outcome(alone / name), name


@pytest.mark.parametrize(
    ("names", "ranks", "stop", "then"), [(SPREAD, 3, 3, 2), (["centralized"], 1, 4, 1)]
)
def test_stopped_and_resumed(alone, play, names, ranks, stop, then):
    """On another number of ranks; centralised training on the same one."""
    folder = play(ranks, names, stop=stop)
    for name in names:
        found, whole = outcome(folder / name), outcome(alone / name)
        played = [line for line in whole.log if line["round"] <= stop]
        assert (found.round, found.log) == (stop, played), name
    play(then, names, folder=folder)
    for name in names:
        assert outcome(folder / name) == outcome(alone / name), name
