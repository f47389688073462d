"""Assign clients to ranks: the rank that owns each one's state, and the rank that trains it.

A client has one owner for the whole run.  In a round it is trained by its owner; with
``balance: steal`` ranks that would be busiest give some of their clients to others.  The result
does not depend on the rank that trains: each client's draws are its own, and sums are exact.
Balancing transfers few clients (seldom one more than it must), until the busiest rank has at most a
twentieth more to do than by the longest-processing-time rule (LPT: the largest first, each to the
rank with the least so far), which ignores owners.  All of it is a function of the cohort, the same
on every rank.

Work is counted in examples, not in steps: the time of a step is that of its batch, and the only
step of a small client, or the last of any, may have few examples.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import JobError

_SLACK = 20  # a move costs more than the twentieth part of a rank's work that it may save

Ints = NDArray[np.int64]


def assign_owners(examples: Sequence[int], ranks: int) -> NDArray[np.int64]:
    """The owner of every client: the largest first, each to the rank with the least so far.

    Raises:
        JobError: there are more ranks than clients.
    """
    if ranks > len(examples):
        raise JobError(
            f"{ranks} ranks for {len(examples)} clients: a rank would own none; "
            f"start at most {len(examples)} ranks"
        )
    owner = np.empty(len(examples), dtype=np.int64)
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    for client in np.argsort(-np.asarray(examples), kind="stable"):
        load, rank = loads[0]
        owner[client] = rank
        heapreplace(loads, (load + int(examples[client]), rank))
    return owner


class Transfer(NamedTuple):
    """A client that another rank than its owner trains."""

    client: int
    owner: int
    trainer: int


class Assignment(NamedTuple):
    """What falls to one rank in a round, in the cohort's order."""

    round: int
    trained: list[int]
    """The members of the cohort that this rank trains."""
    owned: list[int]
    """Those whose states this rank keeps."""
    transfers: list[Transfer]
    """On any ranks; the same list on all of them."""


class Balance:
    """Computes the assignments of one rank, round by round.

    Args:
        draw: round -> its cohort.
        rounds: of the run.
        owner: [N], the rank of every client.
        work: [N], positive, the examples that every client takes in a round; None: owners train.
        rank: the one whose assignments are computed.
        ranks: how many there are.
    """

    def __init__(
        self,
        draw: Callable[[int], Ints],
        rounds: int,
        owner: Ints,
        work: Ints | None,
        rank: int,
        ranks: int,
    ) -> None:
        self._draw, self._rounds, self._rank, self._ranks = draw, rounds, rank, ranks
        self._owner, self._work = owner, work
        # Two rounds are kept: the coming one is looked at while this one is played.
        self.assignment = lru_cache(2)(self._duty)
        """Round -> what falls to this rank; of a round past the end, nothing."""

    def _duty(self, round: int) -> Assignment:
        if round >= self._rounds:
            return Assignment(round, [], [], [])
        members = self._draw(round)
        owner = trainer = self._owner[members]
        if self._work is not None:
            trainer = assign_trainers(owner, self._work[members], self._ranks)
        moved = np.flatnonzero(owner != trainer)
        columns = (members[moved], owner[moved], trainer[moved])
        return Assignment(
            round,
            members[trainer == self._rank].tolist(),
            members[owner == self._rank].tolist(),
            [Transfer(*move) for move in zip(*(part.tolist() for part in columns), strict=True)],
        )


def assign_trainers(owner: Ints, work: Ints, ranks: int) -> Ints:
    """Who trains each member of a cohort.

    Args:
        owner: [K], the rank that keeps the member's state.
        work: [K], positive, what there is to do for it.
        ranks: how many.

    Returns:
        [K], ranks; the busiest has at most 1.05 times the work of the busiest by LPT.
    """
    load = np.bincount(owner, work, ranks).astype(np.int64)
    least = max(int(work.max(initial=0)), -(-int(work.sum()) // ranks))  # whatever is done
    if load.max() <= least + least // _SLACK:
        return owner
    where, size = owner.tolist(), work.tolist()
    spread, most = _spread(size, ranks)
    limit = most + most // _SLACK
    ways = (
        _unburdened(where, size, load.tolist(), limit),
        _crowded_out(where, size, ranks, limit),
        _renamed(where, spread, ranks),
    )
    found = [np.array(way, dtype=np.int64) for way in ways if way is not None]
    return min(found, key=lambda way: int(np.count_nonzero(way != owner)))


def _spread(work: Sequence[int], ranks: int) -> tuple[list[int], int]:
    """The rank of every client by LPT, and the work of the busiest."""
    rank_of, loads = [0] * len(work), [(0, rank) for rank in range(ranks)]
    for i in _largest_first(work):
        load, rank = loads[0]
        rank_of[i] = rank
        heapreplace(loads, (load + work[i], rank))
    return rank_of, max(loads)[0]


def _unburdened(
    owner: Sequence[int], work: Sequence[int], load: list[int], limit: int
) -> list[int] | None:
    """Let the overburdened hand clients to the others; None where a client fits nowhere.

    One that is enough by itself goes, the smallest such one, else the largest that fits.
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


def _crowded_out(
    owner: Sequence[int], work: Sequence[int], ranks: int, limit: int
) -> list[int] | None:
    """Let the largest stay, and whoever no longer fits go; None where one fits nowhere."""
    trainer, load = list(owner), [0] * ranks
    for i in _largest_first(work):
        rank = owner[i]
        if load[rank] + work[i] > limit:
            rank = load.index(min(load))
        trainer[i] = rank
        load[rank] += work[i]
    return trainer if max(load) <= limit else None


def _renamed(owner: Sequence[int], spread: Sequence[int], ranks: int) -> list[int]:
    """LPT's groups, each given to a rank that owns many of its clients."""
    shared = Counter(zip(spread, owner, strict=True))
    name: dict[int, int] = {}
    free = dict.fromkeys(range(ranks))
    for group, rank in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if group not in name and rank in free:
            name[group] = rank
            del free[rank]
    rest = iter(free)
    return [
        name[group] if group in name else name.setdefault(group, next(rest)) for group in spread
    ]


def _largest_first(work: Sequence[int]) -> list[int]:
    return sorted(range(len(work)), key=lambda i: (-work[i], i))
