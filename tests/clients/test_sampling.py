"""Cohorts: by hand, by frequency, and independent of what was drawn before."""

import json

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from hpcfl.clients.sampling import (
    Bernoulli,
    CohortConfig,
    Cyclic,
    Drawing,
    Importance,
    PowerOfChoice,
    Replay,
    Uniform,
)
from hpcfl.errors import JobError


def test_cyclic_by_hand():
    """Size 3 of 7, wrapping round; always ascending."""
    drawn = [Cyclic(size=3).draw(t, 7, seed=9).tolist() for t in range(5)]
    assert drawn == [[0, 1, 2], [3, 4, 5], [0, 1, 6], [2, 3, 4], [0, 5, 6]]
    assert Cyclic(size=3).participation(7) == 3 / 7


def test_cyclic_of_a_divisor_takes_everyone_once():
    seen = np.concatenate([Cyclic(size=4).draw(t, 12, seed=0) for t in range(3)])
    assert sorted(seen.tolist()) == list(range(12))


@pytest.mark.parametrize(
    "cohort",
    [
        Uniform(size=5),
        Bernoulli(p=0.3),
        Cyclic(size=5),
        Importance(size=5),
        PowerOfChoice(size=3, candidates=5),
    ],
)
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


@pytest.mark.parametrize("cohort", [Uniform(size=8), Cyclic(size=8), Importance(size=8)])
def test_cohorts_larger_than_the_population(cohort):
    with pytest.raises(JobError, match=r"cohort.size: cohorts of 8.* at most 7"):
        cohort.check(7, 1)
    cohort.check(8, 1)


WEIGHTS = np.array([10.0, 40.0, 5.0, 25.0, 20.0])


def test_importance_draws_by_the_weights_and_with_replacement():
    """3 draws of 4000 rounds: 12000 p_i in all, within five standard deviations."""
    cohort = Importance(size=3)
    drawn = [cohort.draws(Drawing(t, 5, 0, weights=WEIGHTS)) for t in range(4000)]
    chances = WEIGHTS / 100
    counts = np.bincount(np.concatenate(drawn), minlength=5)
    assert counts.sum() == 12000
    assert np.all(np.abs(counts - 12000 * chances) < 5 * np.sqrt(12000 * chances * (1 - chances)))
    for t in range(50):
        assert cohort.draw(t, 5, seed=0, weights=WEIGHTS).tolist() == sorted(set(drawn[t]))
    doubled = np.mean([len(set(d)) < 3 for d in drawn])
    assert doubled == pytest.approx(1 - 6 * _distinct_triples(chances), abs=0.04)


def _distinct_triples(p):
    """The sum of p_i p_j p_k over i < j < k."""
    return sum(p[i] * p[j] * p[k] for i in range(5) for j in range(i) for k in range(j))


def test_a_mean_by_importance_is_unbiased():
    """(1/m) sum over draws of v_i has the mean sum p_i v_i and the variance of one draw over m."""
    cohort, v = Importance(size=3), np.array([3.0, -1.0, 8.0, 0.5, 2.0])
    means = [v[cohort.draws(Drawing(t, 5, 7, weights=WEIGHTS))].mean() for t in range(4000)]
    chances = WEIGHTS / 100
    expected = chances @ v
    deviation = np.sqrt((chances @ v**2 - expected**2) / 3)
    assert np.mean(means) == pytest.approx(expected, abs=5 * deviation / np.sqrt(4000))
    assert np.std(means) == pytest.approx(deviation, rel=0.05)


def test_candidates_are_drawn_by_the_weights_without_replacement():
    """One of two candidates of three clients: first by p, then by what is left of it."""
    cohort, weights = PowerOfChoice(size=1, candidates=2), np.array([1.0, 2.0, 5.0])
    drawn = [cohort.draw_candidates(Drawing(t, 3, 0, weights=weights)) for t in range(4000)]
    assert all(len(set(d)) == 2 for d in drawn)
    p = weights / 8
    first = np.bincount([d[0] for d in drawn], minlength=3) / 4000
    assert first == pytest.approx(p, abs=0.04)
    pairs = sum(set(d) == {0, 1} for d in drawn) / 4000
    assert pairs == pytest.approx(p[0] * p[1] / (1 - p[0]) + p[1] * p[0] / (1 - p[1]), abs=0.03)


def test_the_largest_losses_are_chosen_and_of_equal_ones_the_lowest_numbers():
    cohort, candidates = PowerOfChoice(size=2, candidates=4), np.array([1, 3, 4, 8])
    assert cohort.choose(candidates, np.array([0.2, 0.9, 0.1, 0.7])).tolist() == [3, 8]
    assert cohort.choose(candidates, np.array([0.5, 0.9, 0.5, 0.5])).tolist() == [1, 3]
    assert cohort.choose(candidates, np.array([0.5, 0.5, 0.5, 0.9])).tolist() == [1, 8]
    assert cohort.choose(candidates[:1], np.array([0.5])).tolist() == [1]


def test_as_many_candidates_as_places_are_a_draw_by_the_weights():
    cohort = PowerOfChoice(size=3, candidates=3)
    for t in range(20):
        drawn = cohort.draw_candidates(Drawing(t, 5, 1, weights=WEIGHTS))
        losses = np.random.default_rng(t).normal(size=3)
        chosen = cohort.choose(np.sort(drawn), losses)
        assert chosen.tolist() == cohort.draw(t, 5, seed=1, weights=WEIGHTS).tolist()


@pytest.mark.parametrize("cohort", [Importance(size=3), PowerOfChoice(size=2, candidates=3)])
def test_draws_by_weight_among_the_available(cohort):
    few = np.array([1, 4])
    seen = [cohort.draw(t, 5, 0, few, WEIGHTS) for t in range(200)]
    assert set(np.concatenate(seen).tolist()) == {1, 4}
    assert cohort.draw(0, 5, 0, few[:0], WEIGHTS).tolist() == []


def test_fewer_candidates_than_places():
    with pytest.raises(ValueError, match=r"^candidates: found 2, expected 3 at least, the size$"):
        PowerOfChoice(size=3, candidates=2)


def test_more_candidates_than_clients():
    with pytest.raises(JobError, match=r"cohort.candidates: 8 clients.* at most 7"):
        PowerOfChoice(size=3, candidates=8).check(7, 1)
    PowerOfChoice(size=3, candidates=7).check(7, 1)


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
        {"kind": "power_of_choice", "size": 2},
        {"kind": "power_of_choice", "size": 3, "candidates": 2},
        {"kind": "importance", "size": 0},
    ],
)
def test_sections_that_are_refused(section):
    with pytest.raises(ValidationError):
        TypeAdapter(CohortConfig).validate_json(json.dumps(section))
