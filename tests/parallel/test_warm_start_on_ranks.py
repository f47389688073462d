"""The pass over all clients before round 1: the same bits on any number of ranks, killed or not."""

import os
import signal
from functools import partial

import numpy as np
import pytest
import yaml

from hpcfl.clients.assignment import Balance, assign_owners, in_groups
from hpcfl.runs.log import Line, RunLog
from hpcfl.runs.manifest import committed
from tests.algorithms.play import softmax_problem, tree
from tests.forked import finish
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

SIZES = (20, 2, 5, 8, 3, 12, 7, 9, 1)
# Groups of two, the last one of one client; clients 4 and 8 never take part.
COHORT = {"kind": "replay", "rounds": [[0, 1], [], [2, 3, 5], [6, 7], [0, 2, 3]]}
WARM = {"name": "scaffold", "first": "gradient"}
JOBS = {
    "owner": {},
    "steal": {"balance": "steal"},
    "option-1": {"algorithm": WARM | {"option": 1}, "precision": "float32"},
    "bfloat16": {"store": {"dtype": "bfloat16"}, "balance": "steal"},
    "no-cache": {"store": {"cache_gib": 0.0}},
    "block": {"executor": "block", "block_size": 2},
    "block-steal": {"executor": "block", "block_size": 2, "balance": "steal"},
    "bernoulli": {"cohort": {"kind": "bernoulli", "p": 0.3}},
    # The first round with clients has the number of the group after the last.
    "empty": {
        "cohort": {**COHORT, "rounds": [*([[]] * 5), *COHORT["rounds"]]},
        "balance": "steal",
        "rounds": 10,
    },
    "full": {"cohort": {"kind": "cyclic", "size": 9}},
}


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Plays every job (or resumes them, where ``folder`` is given) on so many ranks."""

    def go(ranks, names=tuple(JOBS), *, stop=0, folder=None, backend="gloo"):
        root = folder or tmp_path_factory.mktemp(f"on{ranks}")
        comm = {"backend": backend}
        common = {"algorithm": WARM, "cohort": COHORT, "rounds": 5, "comm": comm}
        jobs = {
            name: tree(root, softmax_problem(SIZES), **{**common, **JOBS[name]}) for name in names
        }
        play_all(root, jobs, ranks, stop=stop, mpi=backend == "mpi")
        return {name: outcome(root / name) for name in names}, root

    return go


@pytest.fixture(scope="module")
def alone(play):
    """Every job, uninterrupted on one rank."""
    return play(1)[0]


def test_all_clients_have_states(alone):
    for name, found in alone.items():
        assert len(found.clients) == len(SIZES), name
        assert found.log[0]["round"] == 0, name
    assert alone["no-cache"] == alone["owner"] == alone["steal"]
    assert alone["block"] == alone["block-steal"]


@pytest.mark.parametrize(("ranks", "backend"), [(2, "mpi"), (3, "gloo")])
def test_on_any_number_of_ranks(alone, play, ranks, backend):
    many, _ = play(ranks, backend=backend)
    for name, found in many.items():
        assert found == alone[name], name
    groups, sizes = in_groups(len(SIZES), 2), np.array(SIZES)
    owner = assign_owners(SIZES, ranks)
    dealt = Balance(groups.__getitem__, len(groups), owner, lambda g: sizes[groups[g]], 0, ranks)
    # With balance steal, states of the pass come from other ranks.
    assert sum(len(dealt.assignment(group).transfers) for group in range(len(groups))) == 3


def test_stopped_and_resumed_on_another_number_of_ranks(alone, play):
    names = ["owner", "bfloat16", "no-cache"]
    found, folder = play(3, names, stop=1)
    for name in names:
        assert [line["round"] for line in found[name].log] == [0, 1]
    assert play(2, names, folder=folder)[0] == {name: alone[name] for name in names}


def _die_after(round: int) -> None:
    """Kill this process as soon as the log has the line of that round."""
    write_line = RunLog.write

    def write_and_die(log: RunLog, record: Line) -> None:
        write_line(log, record)
        if record["round"] == round:
            os.kill(os.getpid(), signal.SIGKILL)

    RunLog.write = write_and_die


@pytest.mark.parametrize("round", [0, 1])
@pytest.mark.parametrize("ranks", [1, 3])
def test_killed_before_the_first_checkpoint_of_a_round(alone, tmp_path, round, ranks):
    """After the pass, or a round later: a resume begins with the pass again."""
    job = tree(tmp_path, softmax_problem(SIZES), WARM, cohort=COHORT, rounds=5)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job | {"checkpoint": {"every": 4}}))
    run = tmp_path / "run"
    prepare = partial(_die_after, round)
    ended = finish(1, "run", tmp_path / "job.yaml", "--out", run, prepare=prepare)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [c.round for c in committed(run / "checkpoints")] == [0]
    ended = finish(ranks, "resume", run)
    assert ended.returncode == 0, ended.stderr
    assert outcome(run) == alone["owner"]
