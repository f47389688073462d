"""Checkpoints that the schedule does not have keep their states."""

import pytest

from hpcfl.job.load import load
from hpcfl.start.start import start
from tests.algorithms.play import parts, softmax_problem, states, tree

pytestmark = pytest.mark.usefixtures("own_process")

ROUNDS = [[0, 1], [2], [1, 2], [5], [0, 3], [3, 4]]


def job(folder, name, **changes):
    settings = {
        "cohort": {"kind": "replay", "rounds": ROUNDS},
        "rounds": len(ROUNDS),
        "checkpoint": {"every": 4},
        **changes,
    }
    return tree(folder, softmax_problem(), {"name": name}, **settings)


@pytest.mark.parametrize("name", ["fedhbm", "localghb"])
def test_checkpoints_by_the_clock(tmp_path, name):
    """One after every round, not in the schedule; all are kept, each with its own states."""
    often = {"every": 100, "minutes": 1e-9, "keep": 100}
    described = parts(tmp_path, job(tmp_path, name))
    whole = start(load(job(tmp_path, name)), tmp_path / "whole")
    found = start(load(job(tmp_path, name, checkpoint=often)), tmp_path / "often")
    assert found.x.equal(whole.x)
    kept = [states(found.directory, described, index) for index in range(len(ROUNDS) + 1)]
    for t, clients in enumerate(ROUNDS):
        before, after = kept[t], kept[t + 1]
        changed = [i for i in range(6) if not same(before[i], after[i])]
        assert changed == sorted(clients)


def same(one, other):
    if one is None or other is None:
        return one is other
    return all(a.equal(b) for a, b in zip(one, other, strict=True))
