"""Cohorts: by hand, by frequency, and independent of what was drawn before."""

import json

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from hpcfl.cohort.sampling import Bernoulli, CohortConfig, Cyclic, Replay, Uniform
from hpcfl.errors import JobError


def test_cyclic_by_hand():
    """Size 3 of 7, wrapping round; always ascending."""
    drawn = [Cyclic(size=3).draw(t, 7, seed=9).tolist() for t in range(5)]
    assert drawn == [[0, 1, 2], [3, 4, 5], [0, 1, 6], [2, 3, 4], [0, 5, 6]]
    assert Cyclic(size=3).participation(7) == 3 / 7


def test_cyclic_of_a_divisor_takes_everyone_once():
    seen = np.concatenate([Cyclic(size=4).draw(t, 12, seed=0) for t in range(3)])
    assert sorted(seen.tolist()) == list(range(12))


@pytest.mark.parametrize("cohort", [Uniform(size=5), Bernoulli(p=0.3), Cyclic(size=5)])
def test_a_draw_depends_on_seed_and_round_alone(cohort):
    backwards = {t: cohort.draw(t, 20, seed=1).tolist() for t in reversed(range(30))}
    assert all(cohort.draw(t, 20, seed=1).tolist() == backwards[t] for t in range(30))
    for drawn in backwards.values():
        assert drawn == sorted(set(drawn))
        assert set(drawn) <= set(range(20))
    assert cohort.draw(3, 20, seed=1).dtype == np.int64
    if not isinstance(cohort, Cyclic):
        other = [cohort.draw(t, 20, seed=2).tolist() for t in range(30)]
        assert other != list(backwards.values())
        assert backwards[0] != backwards[1]


def test_uniform_takes_all_clients_equally_often():
    """5 of 20 in 4000 rounds: 1000 times each, standard deviation 27."""
    drawn = [Uniform(size=5).draw(t, 20, seed=0) for t in range(4000)]
    assert {len(d) for d in drawn} == {5}
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert np.abs(counts - 1000).max() < 5 * 27.4


def test_uniform_of_everyone_is_everyone():
    assert Uniform(size=6).draw(0, 6, seed=0).tolist() == list(range(6))


def test_bernoulli_draws_clients_independently():
    """p = 0.1 of 20 clients in 4000 rounds: sizes have mean 2 and variance 1.8; some are empty."""
    drawn = [Bernoulli(p=0.1).draw(t, 20, seed=0) for t in range(4000)]
    sizes = np.array([len(d) for d in drawn])
    assert sizes.mean() == pytest.approx(2, abs=5 * (1.8 / 4000) ** 0.5)
    assert sizes.var() == pytest.approx(1.8, rel=0.15)
    assert np.mean(sizes == 0) == pytest.approx(0.9**20, abs=0.03)
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert np.abs(counts - 400).max() < 5 * 19
    assert Bernoulli(p=0.1).participation(20) == 0.1


def test_bernoulli_of_one_is_everyone():
    assert Bernoulli(p=1.0).draw(4, 6, seed=0).tolist() == list(range(6))


@pytest.mark.parametrize("cohort", [Uniform(size=8), Cyclic(size=8)])
def test_cohorts_larger_than_the_population(cohort):
    with pytest.raises(JobError, match=r"cohort.size: cohorts of 8.* at most 7"):
        cohort.check(7, 1)
    cohort.check(8, 1)


def test_replay():
    cohort = Replay(rounds=((2, 0), (), (1,)))
    cohort.check(3, 3)
    assert [cohort.draw(t, 3, seed=0).tolist() for t in range(3)] == [[0, 2], [], [1]]
    assert cohort.participation(3) == pytest.approx(1 / 3)


def test_replay_from_a_file(tmp_path):
    path = tmp_path / "cohorts.json"
    path.write_text(json.dumps([[3, 1], [0]]))
    cohort = Replay(path=str(path))
    assert [cohort.draw(t, 4, seed=0).tolist() for t in range(2)] == [[1, 3], [0]]


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        (((0,), (1,)), "2 cohorts are given for 3 rounds"),
        (((0,), (4,), (1,)), r"rounds\[1\]: client 4 is unknown; .* 0 to 3"),
        (((0,), (1,), (-1,)), r"rounds\[2\]: client -1 is unknown"),
        (((0, 1, 0), (1,), (2,)), r"rounds\[0\]: client 0 is listed twice"),
        (((), (), ()), "every cohort is empty"),
        ((), "0 cohorts are given for 3 rounds"),
    ],
)
def test_replay_errors(rounds, message):
    with pytest.raises(JobError, match=message):
        Replay(rounds=rounds).check(4, 3)


@pytest.mark.parametrize(
    "text", ["{}", "[1, 2]", "[[0], [1.5]]", "[[true]]", '[["0"]]', "nonsense"]
)
def test_replay_file_errors(tmp_path, text):
    path = tmp_path / "cohorts.json"
    path.write_text(text)
    with pytest.raises(JobError, match=r"cohorts.json: (expected|cannot be read)"):
        Replay(path=str(path)).check(4, 1)


def test_replay_file_missing(tmp_path):
    with pytest.raises(JobError, match=r"none.json: cannot be read"):
        Replay(path=str(tmp_path / "none.json")).check(4, 1)


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "replay"},
        {"kind": "replay", "rounds": [[0]], "path": "F.json"},
        {"kind": "replay", "rounds": [[True]]},
        {"kind": "uniform"},
        {"kind": "uniform", "size": 0},
        {"kind": "uniform", "size": 2.5},
        {"kind": "bernoulli", "p": 0.0},
        {"kind": "bernoulli", "p": 1.1},
        {"kind": "lottery", "size": 2},
    ],
)
def test_sections_that_are_refused(section):
    with pytest.raises(ValidationError):
        TypeAdapter(CohortConfig).validate_json(json.dumps(section))
