"""Compute the disk space of a store from the cohorts, without training or writing.

A state is known here by the round it was made in.  Every client has one of its own; a part of it
that all clients of a round share is kept once a rank for every round that one of them was last
seen in.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.store.row_allocator import most_rows

HEADER = 2048  # bytes of a segment file before its rows; measured, 1 to 4 fields
INDEX = 1300  # bytes of a row table without rows; measured
ROUNDS = 2  # that may go on until a commit is waited for, see Hdf5Store.short
ENTRY = 32  # bytes of a row in a row table: four int64

Counts = NDArray[np.int64]


class _Commit(NamedTuple):
    """What a checkpoint names: states, and those of them that the one before did not; a rank."""

    states: Counts
    new: Counts


class DiskUsage:
    """The rows of every rank's segments, as commits go on.

    Args:
        owner: [N], the rank of every client.
        ranks: how many.
        each: bytes of a row.
        keep: how many checkpoints are kept.
        shared: the clients of a rank and a round have one row together.
        memory: the states live in memory, and a commit writes one file of all of them.
    """

    def __init__(
        self, owner: Counts, ranks: int, each: int, keep: int, *, shared: bool, memory: bool
    ) -> None:
        self._owner, self._ranks = owner, ranks
        self._keep, self._shared, self._memory = keep, shared, memory
        self._kept: deque[_Commit] = deque()
        self._later = np.zeros(ranks, np.int64)  # new states of all kept commits but the oldest
        self._newest = 0  # round of a state
        self.each = each
        """Bytes of a row."""
        self.states = np.zeros(ranks, np.int64)
        """Different states that the clients have now; of every rank."""
        self.rows = np.zeros(ranks, np.int64)
        """Rows that are needed on the disk, at most so far; of every rank."""
        self._files = np.zeros(ranks, np.int64)

    def commit(self, last: Counts) -> None:
        """Take a checkpoint; ``last`` [N] is the round of every client's state, 0 for none."""
        self.states, new = self._distinct(last, 0), self._distinct(last, self._newest)
        self._newest = int(last.max(initial=0))
        # A state that is gone does not come back: what the kept checkpoints name together is what
        # the oldest names and what was new in each of the others.
        if self._kept:
            self._later = self._later + new
        self._kept.append(_Commit(self.states, new))
        rows, files = self._kept[0].states + self._later, self._files
        if self._memory:
            each = np.array([commit.states for commit in self._kept])
            rows, files = each.sum(0), (each > 0).sum(0)
        self.rows, self._files = np.maximum(self.rows, rows), np.maximum(self._files, files)
        if len(self._kept) > self._keep:
            self._kept.popleft()
            self._later = self._later - self._kept[0].new

    def spare(self, members: Counts) -> None:
        """Add rows for the rounds that go on while a commit is written.

        Args:
            members: [ranks], the largest part of a cohort.
        """
        if not self._memory:
            self.rows += np.where(self.rows, ROUNDS * (1 if self._shared else members), 0)
            self._files = -(-self.rows // most_rows(self.each))

    @property
    def bytes(self) -> Counts:
        """What the rows take on the disk; of every rank."""
        return self.rows * self.each + self._files * HEADER

    def _distinct(self, last: Counts, beyond: int) -> Counts:
        """How many different states later than a round the clients have, of every rank."""
        late = last > beyond
        if not self._shared:
            return np.bincount(self._owner[late], minlength=self._ranks)
        span = 1 + int(last.max(initial=0))
        states = np.sort(self._owner[late] * span + last[late])
        states = states[np.diff(states, prepend=-1) > 0]  # as np.unique, a hundred times faster
        return np.bincount(states // span, minlength=self._ranks)
