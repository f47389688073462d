"""Assign clients to ranks: the rank that owns each one's state, and the rank that trains it.

A client has one owner for the whole run, which trains it in every round; with ``balance: steal``
the busiest ranks transfer some of their clients to others for a round.  The result does not depend
on the rank that trains: every client has its own random generators, and sums are exact.

Balancing transfers as few clients as possible, seldom one more, such that the busiest rank has at
most a twentieth more work than by the longest-processing-time rule (LPT: the largest client first,
each to the rank with the least work so far), which ignores owners.  Assignments are a function of
the cohort, computed alike on every rank, so that nothing needs to be communicated.

Work is counted in examples, not in steps: a step takes the time of its batch, and the only step of
a small client, or the last step of any, may have few examples.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np

from hpcfl.errors import JobError
from hpcfl.types import IntArray

_SLACK = 20  # a transfer costs more than the twentieth of a rank's work that it could save


def assign_owners(examples: Sequence[int], ranks: int) -> IntArray:
    """The owner of every client: the largest first, each to the rank with the fewest examples.

    Raises:
        JobError: there are more ranks than clients.
    """
    if ranks > len(examples):
        raise JobError(
            f"{ranks} ranks for {len(examples)} clients: a rank would own none; "
            f"start at most {len(examples)} ranks"
        )
    return np.array(_lpt(examples, ranks)[0], dtype=np.int64)


def in_groups(clients: int, size: int) -> list[IntArray]:
    """All clients in groups of ``size``, in the order of their numbers; the last may be smaller."""
    return [np.arange(k, min(k + size, clients)) for k in range(0, clients, size)]


class Transfer(NamedTuple):
    """A client that another rank than its owner trains."""

    client: int
    owner: int
    trainer: int


class Assignment(NamedTuple):
    """The clients of one rank in a round, in the cohort's order."""

    round: int
    trained: list[int]
    """The members of the cohort that this rank trains."""
    owned: list[int]
    """The members whose states this rank keeps."""
    transfers: list[Transfer]
    """The transfers between all ranks; the same list on every rank."""


NOBODY = Assignment(-1, [], [], [])
"""Stands for the next round where its cohort is not known yet."""


class Balance:
    """Computes the assignments of one rank, round by round.

    Args:
        draw: round -> its cohort.
        rounds: of the run.
        owner: [N], the rank that owns each client.
        work: round -> [K], positive, examples in the round of each member of its cohort; None:
            owners train.
        rank: whose assignments are computed.
        ranks: their number.
    """

    def __init__(
        self,
        draw: Callable[[int], IntArray],
        rounds: int,
        owner: IntArray,
        work: Callable[[int], IntArray] | None,
        rank: int,
        ranks: int,
    ) -> None:
        self._draw, self._rounds, self._rank, self._ranks = draw, rounds, rank, ranks
        self._owner, self._work = owner, work
        # Two rounds are cached: the next one is used while this one runs.
        self.assignment = lru_cache(2)(self._assignment)
        """Round -> the assignment of this rank; after the last round, an empty one."""

    def _assignment(self, round: int) -> Assignment:
        if round >= self._rounds:
            return Assignment(round, [], [], [])
        work = None if self._work is None else self._work(round)
        return self.of(round, self._draw(round), work)

    def of(self, round: int, members: IntArray, work: IntArray | None) -> Assignment:
        """The assignment of this rank in a round with these members and this work."""
        owner = trainer = self._owner[members]
        if work is not None:
            trainer = assign_trainers(owner, work, self._ranks)
        moved = np.flatnonzero(owner != trainer)
        columns = (members[moved], owner[moved], trainer[moved])
        return Assignment(
            round,
            members[trainer == self._rank].tolist(),
            members[owner == self._rank].tolist(),
            [Transfer(*row) for row in zip(*(column.tolist() for column in columns), strict=True)],
        )


def assign_trainers(owner: IntArray, work: IntArray, ranks: int) -> IntArray:
    """The rank that trains each member of a cohort.

    Args:
        owner: [K], the rank that owns the member.
        work: [K], positive, its examples in the round.
        ranks: their number.

    Returns:
        [K], ranks; the busiest has at most 1.05 times the work of the busiest by LPT.
    """
    load = np.bincount(owner, work, ranks).astype(np.int64)
    # The busiest rank has at least the largest client, and at least the mean over ranks.
    least = max(int(work.max(initial=0)), -(-int(work.sum()) // ranks))
    if load.max() <= least + least // _SLACK:
        return owner
    owners, sizes = owner.tolist(), work.tolist()
    spread, most = _lpt(sizes, ranks)
    limit = most + most // _SLACK
    # Finding the fewest transfers is a bin-packing problem; three heuristics, of which the last one
    # always succeeds, come close.
    candidates = (
        _transfer_from_busiest(owners, sizes, load.tolist(), limit),
        _transfer_what_exceeds(owners, sizes, ranks, limit),
        _match_groups(owners, spread, ranks),
    )
    found = [np.array(trainer, dtype=np.int64) for trainer in candidates if trainer is not None]
    return min(found, key=lambda trainer: int(np.count_nonzero(trainer != owner)))


def _lpt(work: Sequence[int], ranks: int) -> tuple[list[int], int]:
    """The rank of every client by the LPT rule, and the work of the busiest rank."""
    rank_of, loads = [0] * len(work), [(0, rank) for rank in range(ranks)]
    for i in _largest_first(work):
        load, rank = loads[0]
        rank_of[i] = rank
        heapreplace(loads, (load + work[i], rank))
    return rank_of, max(loads)[0]


def _transfer_from_busiest(
    owner: Sequence[int], work: Sequence[int], load: list[int], limit: int
) -> list[int] | None:
    """Transfer clients from ranks above ``limit`` to the others; None if a client fits nowhere.

    The smallest client that brings its rank below the limit is transferred, else the largest one
    that fits on another rank.
    """
    trainer = list(owner)
    least = [(of, rank) for rank, of in enumerate(load) if of <= limit]
    heapify(least)
    own: dict[int, list[tuple[int, int]]] = {rank: [] for rank, of in enumerate(load) if of > limit}
    for one in sorted((size, i) for i, size in enumerate(work) if owner[i] in own):
        own[owner[one[1]]].append(one)
    for rank in sorted(own, key=lambda rank: (-load[rank], rank)):
        while load[rank] > limit:
            taken, other = least[0]
            fits = bisect_left(own[rank], (limit - taken + 1,))
            if not fits:
                return None
            enough = bisect_left(own[rank], (load[rank] - limit,))
            size, i = own[rank].pop(min(enough, fits - 1))
            trainer[i] = other
            load[rank] -= size
            heapreplace(least, (taken + size, other))
    return trainer


def _transfer_what_exceeds(
    owner: Sequence[int], work: Sequence[int], ranks: int, limit: int
) -> list[int] | None:
    """Keep the largest clients with their owners up to ``limit``, and transfer the rest.

    None if a client fits nowhere.
    """
    trainer, load = list(owner), [0] * ranks
    for i in _largest_first(work):
        rank = owner[i]
        if load[rank] + work[i] > limit:
            rank = load.index(min(load))
        trainer[i] = rank
        load[rank] += work[i]
    return trainer if max(load) <= limit else None


def _match_groups(owner: Sequence[int], spread: Sequence[int], ranks: int) -> list[int]:
    """The groups of the LPT rule, each on a rank that owns many of its clients."""
    shared = Counter(zip(spread, owner, strict=True))
    rank_of: dict[int, int] = {}
    free = dict.fromkeys(range(ranks))
    for group, rank in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if group not in rank_of and rank in free:
            rank_of[group] = rank
            del free[rank]
    rest = iter(free)
    return [
        rank_of[group] if group in rank_of else rank_of.setdefault(group, next(rest))
        for group in spread
    ]


def _largest_first(work: Sequence[int]) -> list[int]:
    order: list[int] = np.argsort(-np.asarray(work), kind="stable").tolist()
    return order
