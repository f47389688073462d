"""Who trains whom: the busiest has little more than by LPT, few move, the same for whoever asks."""

from functools import partial
from itertools import combinations, product

import numpy as np
import pytest

from hpcfl.clients.assignment import Balance, Transfer, assign_owners, assign_trainers
from hpcfl.clients.sampling import Uniform

RANKS = 4


def most(rank_of, work, ranks):
    return int(np.bincount(rank_of, work, ranks).max())


def lpt(work, ranks):
    """The busiest's work if nobody owned anything; ``assign_owners`` deals by the same rule."""
    return most(assign_owners([*work, *[0] * ranks], ranks), [*work, *[0] * ranks], ranks)


def draws(seed, *, clients, ranks, sigma, rounds):
    """Cohorts with their owners, of a population that is placed by its sizes."""
    draw = np.random.default_rng(seed)
    sizes = np.maximum(1, draw.lognormal(5, sigma, 100)).astype(np.int64)
    owner = assign_owners(sizes.tolist(), ranks)
    for t in range(rounds):
        members = Uniform(size=clients).draw(t, 100, seed)
        yield owner[members], sizes[members]


def test_by_hand():
    """Rank 0 has 5 + 3 + 2 of 12, LPT gives 6: the 5 is more than the 4 that must go, and fits."""
    owner, work = np.array([0, 0, 0, 1]), np.array([5, 3, 2, 2])
    assert assign_trainers(owner, work, 2).tolist() == [0, 1, 0, 1]


def test_ten_of_a_hundred_equal_clients_on_four_ranks():
    """3 for the busiest, in every round, and no more moves than clients above 3."""
    by_owner = []
    for owner, work in draws(1, clients=10, ranks=RANKS, sigma=0.0, rounds=500):
        found = assign_trainers(owner, work, RANKS)
        counts = np.bincount(owner, minlength=RANKS)
        assert np.bincount(found, minlength=RANKS).max() == 3
        assert (found != owner).sum() == np.maximum(counts - 3, 0).sum()
        by_owner.append(counts.max())
    assert 4.0 < np.mean(by_owner) < 4.3


@pytest.mark.parametrize(("clients", "ranks"), [(10, 4), (50, 4), (50, 16), (3, 4)])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_skewed_sizes_are_within_a_twentieth_of_lpt(clients, ranks, sigma):
    for owner, work in draws(2, clients=clients, ranks=ranks, sigma=sigma, rounds=100):
        found = assign_trainers(owner, work, ranks)
        assert most(found, work, ranks) <= 1.05 * lpt(work, ranks)


def test_no_more_moves_than_are_needed():
    """Against all ways: never more than one too many, and seldom that."""
    extra = []
    for owner, work in draws(3, clients=6, ranks=3, sigma=0.7, rounds=150):
        limit = 1.05 * lpt(work, 3)
        moved = int((assign_trainers(owner, work, 3) != owner).sum())
        extra.append(moved - fewest(owner, work, limit))
    assert set(extra) <= {0, 1}
    assert np.mean(extra) < 0.1


def fewest(owner, work, limit):
    for count in range(len(owner) + 1):
        for which in combinations(range(len(owner)), count):
            for where in product(range(3), repeat=count):
                found = owner.copy()
                found[list(which)] = where
                if most(found, work, 3) <= limit:
                    return count
    raise AssertionError


@pytest.mark.parametrize(
    ("owner", "work", "ranks"),
    [
        ([0, 1, 2, 0], [5, 5, 5, 5], 3),  # 2, 1, 1 is as good as it gets
        ([0, 0, 1], [100, 3, 80], 2),  # 3 % above the largest alone
        ([1, 0], [1, 1000], 2),  # one is larger than all others together
        ([0] * 6, [4, 1, 9, 2, 2, 2], 1),  # one rank
        ([], [], 3),  # an empty round
    ],
)
def test_what_is_balanced_stays(owner, work, ranks):
    owner, work = np.array(owner, dtype=np.int64), np.array(work, dtype=np.int64)
    assert assign_trainers(owner, work, ranks).tolist() == owner.tolist()


def test_all_ranks_agree_and_everybody_is_trained_once():
    draw = partial(Uniform(size=10).draw, population=100, seed=4)
    work = np.random.default_rng(4).integers(1, 300, 100)
    owner = assign_owners(work.tolist(), RANKS)

    def taken(t):
        return work[draw(t)]

    ranks = [Balance(draw, 50, owner, taken, rank, RANKS) for rank in range(RANKS)]
    for t in range(50):
        duties, members = [rank.assignment(t) for rank in ranks], draw(t).tolist()
        assert sorted(i for duty in duties for i in duty.trained) == sorted(members)
        assert [duty.transfers for duty in duties] == [duties[0].transfers] * RANKS
        for rank, duty in enumerate(duties):
            assert duty.owned == [i for i in members if owner[i] == rank]
            gone = {move.client for move in duty.transfers if move.owner == rank}
            come = {move.client for move in duty.transfers if move.trainer == rank}
            assert set(duty.trained) == set(duty.owned) - gone | come
            assert duty.trained == [i for i in members if i in duty.trained]
    assert any(ranks[0].assignment(t).transfers for t in range(50))
    assert ranks[0].assignment(50) == (50, [], [], [])


def test_without_work_owners_train():
    owner = np.array([1, 0, 1, 1])
    balance = Balance(lambda t: np.array([3, 1, 0]), 9, owner, None, 1, 2)
    assert balance.assignment(0) == (0, [3, 0], [3, 0], [])
    ones = np.ones(4, np.int64)
    stealing = Balance(lambda t: np.array([3, 1, 0, 2]), 9, owner, lambda t: ones, 0, 2)
    assert stealing.assignment(0).transfers == [Transfer(3, 1, 0)]
