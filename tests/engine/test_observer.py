"""What is measured of a round: numbers by hand, and nothing at all unless asked for.

Two clients and one parameter, as in tests/algorithms/test_by_hand.py: the gradients are
g0(w) = w - 2 and g1(w) = 4 w + 2, x = 1, K = 2 full-batch steps at eta = 0.1.

Round 1.  y0 = 1.19, y1 = 0.04, x+ = 0.615.  consistency: both are 0.575 from x+.
drift: (0.19^2 + 0.96^2) / 2 = (0.0361 + 0.9216) / 2.  Gradients -1 and 6, mean 2.5: norm2 6.25,
both 3.5 from it, so g2 = 12.25; b2 = ((1 + 36) / 2) / 6.25 = 2.96.
Round 2.  x = 0.615: y0 = 0.87815, y1 = -0.0986, x+ = 0.389775.  Both are 0.488375 from x+.
drift: (0.26315^2 + 0.7136^2) / 2.  Gradients -1.385 and 4.46, mean 1.5375, both 2.9225 from it.
"""

from collections import Counter

import numpy as np
import pytest
import torch

from hpcfl.engine import diagnostics
from hpcfl.engine.hook_rules import CheckedAlgorithm
from hpcfl.errors import DivergedError, JobError
from hpcfl.local.sequential import Sequential
from hpcfl.runs import log_keys
from tests.algorithms.by_hand.quadratic import TWO
from tests.algorithms.play import kept, parts, play, softmax_problem, states, tree

pytestmark = pytest.mark.usefixtures("own_process")

ALL = {"consistency": True, "drift": True, "dissimilarity": True}
GRADIENTS = ("gradient_norm2", "dissimilarity_g2", "dissimilarity_b2")
KEYS = {"consistency", "drift", *GRADIENTS}
ROUND_1 = {
    "consistency": 0.575**2,
    "drift": (0.0361 + 0.9216) / 2,
    "gradient_norm2": 6.25,
    "dissimilarity_g2": 12.25,
    "dissimilarity_b2": 2.96,
}
ROUND_2 = {
    "consistency": 0.488375**2,
    "drift": (0.26315**2 + 0.7136**2) / 2,
    "gradient_norm2": 1.5375**2,
    "dissimilarity_g2": 2.9225**2,
    "dissimilarity_b2": (1.385**2 + 4.46**2) / 2 / 1.5375**2,
}


def one_parameter(folder, algorithm=None, start=1.0, **changes):
    np.save(folder / "start.npy", np.full(1, start))
    model = {"name": "linear", "bias": False, "init": str(folder / "start.npy")}
    job = tree(folder, TWO, algorithm or {"name": "fedavg"}, model=model, weights="uniform")
    job |= {"local": {"steps": 2, "batch_size": "full", "lr": 0.1}, "rounds": 2}
    return job | {"diagnostics": ALL} | changes


def softmax(folder, algorithm="fedavg", **changes):
    return tree(folder, softmax_problem(), {"name": algorithm}, **changes)


def measured(record):
    return {key: record[key] for key in KEYS & set(record)}


def near(value):
    return pytest.approx(value, rel=1e-12)


def test_two_rounds_by_hand(tmp_path):
    log = play(tmp_path, one_parameter(tmp_path)).log
    assert [measured(record) for record in log] == [near(ROUND_1), near(ROUND_2)]


def test_clients_count_alike_whatever_their_weights(tmp_path):
    """By examples x+ = 1 - 0.6725 = 0.3275: the clients are 0.8625 and 0.2875 from it."""
    log = play(tmp_path, one_parameter(tmp_path, weights="examples", rounds=1)).log
    assert measured(log[0]) == near({**ROUND_1, "consistency": (0.8625**2 + 0.2875**2) / 2})


def test_gradients_hold_no_weight_decay_and_are_not_clipped(tmp_path):
    local = {"steps": 2, "batch_size": "full", "lr": 0.1, "weight_decay": 0.5, "clip": 0.01}
    (record,) = play(tmp_path, one_parameter(tmp_path, local=local, rounds=1)).log
    assert [record[key] for key in GRADIENTS] == near([ROUND_1[key] for key in GRADIENTS])


def test_at_a_stationary_point_b2_is_not_logged(tmp_path):
    """g0 + g1 = 5 w: at 0 the gradients are -2 and 2, of mean zero."""
    (record,) = play(tmp_path, one_parameter(tmp_path, start=0.0, rounds=1)).log
    assert (record["gradient_norm2"], record["dissimilarity_g2"]) == (0.0, 4.0)
    assert "dissimilarity_b2" not in record


def test_a_round_without_clients_does_not_count(tmp_path):
    cohorts = [[0, 1], [], [2, 3, 4]]
    job = softmax(tmp_path, cohort={"kind": "replay", "rounds": cohorts}, rounds=3, diagnostics=ALL)
    first, empty, third = play(tmp_path, job).log
    assert not measured(empty)
    assert set(measured(first)) == set(measured(third)) == KEYS


def test_rounds_that_are_not_due_are_not_measured(tmp_path):
    job = softmax(tmp_path, rounds=6, diagnostics={**ALL, "every": 3})
    whole = play(tmp_path, {**job, "diagnostics": ALL}).log
    log = play(tmp_path, job).log
    assert [record["round"] for record in log if measured(record)] == [3, 6]
    assert [measured(log[t]) for t in (2, 5)] == [measured(whole[t]) for t in (2, 5)]


@pytest.mark.parametrize("name", ALL)
def test_each_comes_alone(tmp_path, name):
    log = play(tmp_path, softmax(tmp_path, rounds=2, diagnostics={name: True})).log
    assert set(measured(log[-1])) == (set(GRADIENTS) if name == "dissimilarity" else {name})


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [
        ({"name": "fedavg"}, 0),
        ({"name": "scaffold", "option": 1}, 2),
        ({"name": "mime"}, 2),
        ({"name": "mimemvr"}, 2),
    ],
)
def test_gradients_that_the_algorithm_asked_for_are_not_computed_again(
    tmp_path, monkeypatch, algorithm, own
):
    passes = Counter()
    full_gradients = Sequential.full_gradients

    def counted(self, x, tasks):
        passes[tmp_path] += 1
        return full_gradients(self, x, tasks)

    monkeypatch.setattr(Sequential, "full_gradients", counted)
    (first, _) = play(tmp_path, one_parameter(tmp_path, algorithm)).log
    assert [first[key] for key in GRADIENTS] == near([ROUND_1[key] for key in GRADIENTS])
    assert passes[tmp_path] == 2
    play(tmp_path, one_parameter(tmp_path, algorithm, diagnostics={}))
    assert passes[tmp_path] == 2 + own


@pytest.mark.parametrize("algorithm", ["fedavg", "fedhbm", "mimemom"])
def test_to_measure_changes_nothing_else(tmp_path, algorithm):
    off = play(tmp_path, softmax(tmp_path, algorithm))
    on = play(tmp_path, softmax(tmp_path, algorithm, diagnostics=ALL))
    assert torch.equal(off.x, on.x)
    described = parts(tmp_path, softmax(tmp_path, algorithm))
    one, other = states(off.directory, described), states(on.directory, described)
    assert all(
        a is b is None or all(map(torch.equal, a, b)) for a, b in zip(one, other, strict=True)
    )
    for a, b in zip(off.log, on.log, strict=True):
        assert all(b[key] == a[key] for key in a if not log_keys.measured(key))


def test_nothing_is_done_unless_asked_for(tmp_path, monkeypatch):
    def never(*args):
        raise AssertionError

    for name in ("exact_sums", "_squares"):
        monkeypatch.setattr(diagnostics, name, never)
    ends, train = [], Sequential.train

    def watched(self, *args, **options):
        trained = train(self, *args, **options)
        if not isinstance(self.algorithm, CheckedAlgorithm):  # in the trial before round 1
            ends.extend(client.local_model for client in trained)
        return trained

    monkeypatch.setattr(Sequential, "train", watched)
    result = play(tmp_path, kept(softmax(tmp_path)))
    assert not any(map(measured, result.log))
    assert set(ends) == {None}


def test_a_gradient_that_is_not_finite_is_named(tmp_path, monkeypatch):
    full_gradients = Sequential.full_gradients

    def spoiled(self, x, tasks):
        gradients = full_gradients(self, x, tasks)
        gradients[3][0][0] = torch.nan
        return gradients

    monkeypatch.setattr(Sequential, "full_gradients", spoiled)
    with pytest.raises(DivergedError, match="client 3 on rank 0, round 1: its upload 'grad'"):
        play(tmp_path, softmax(tmp_path, diagnostics=ALL))


def test_a_diagnostic_that_does_not_exist(tmp_path):
    with pytest.raises(JobError, match=r'no "drfit" \(.*did you mean drift\?'):
        play(tmp_path, softmax(tmp_path, diagnostics={"drfit": True}))
