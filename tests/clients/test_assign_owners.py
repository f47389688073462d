"""Owners: balanced by examples, the same for whoever asks."""

import numpy as np
import pytest

from hpcfl.clients.assignment import assign_owners
from hpcfl.errors import JobError


def loads(examples, ranks):
    return np.bincount(assign_owners(examples, ranks), weights=examples, minlength=ranks)


def test_by_hand():
    """Largest first, each to the least loaded: 7 -> 0, 5 -> 1, 4 -> 1, 3 -> 0, 2 -> 1, 1 -> 0."""
    assert assign_owners([1, 2, 3, 4, 5, 7], 2).tolist() == [0, 1, 0, 1, 1, 0]


def test_equal_sizes_are_dealt_in_order():
    assert assign_owners([5] * 7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_no_rank_has_more_than_the_greedy_bound(ranks):
    """Graham 1969: at most 4/3 - 1/(3 m) times the optimum, which is at least the mean."""
    draw = np.random.default_rng(ranks)
    for _ in range(20):
        examples = (draw.pareto(1.2, 60) * 50 + 1).astype(int).tolist()
        bound = max(sum(examples) / ranks, max(examples))
        assert loads(examples, ranks).max() <= (4 / 3 - 1 / (3 * ranks)) * bound + 1e-9
        assert loads(examples, ranks).min() > 0


def test_the_same_for_everyone():
    examples = np.random.default_rng(0).integers(1, 9, 50).tolist()
    assert (assign_owners(examples, 4) == assign_owners(tuple(examples), 4)).all()
    assert assign_owners(examples, 4).dtype == np.int64


def test_as_many_ranks_as_clients():
    assert sorted(assign_owners([3, 1, 2], 3).tolist()) == [0, 1, 2]


def test_more_ranks_than_clients():
    with pytest.raises(JobError, match=r"4 ranks for 3 clients: .* at most 3 ranks"):
        assign_owners([3, 1, 2], 4)
