"""Compute the disk space that a store will need, from the cohorts alone.

Nothing is trained or written.  A state is represented by the round in which it was made: each
client that took part in a round has a state of its own of that round, and, where clients share a
part of their states, all clients of one rank and one round have one row together.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from hpcfl.store.row_allocator import most_rows
from hpcfl.types import IntArray

SEGMENT_HEADER = 2048  # bytes of a segment file before its rows; measured, 1 to 4 fields
TABLE_HEADER = 1300  # bytes of a row table without rows; measured
TABLE_ENTRY = 32  # bytes of a row in a row table: four int64
# Rounds whose states may need rows after a snapshot until its checkpoint is committed: the engine
# waits for the commit once there are no free rows for so many (``ClientStore.low_on_rows``).
ROUNDS_BEFORE_COMMIT = 2


class _Checkpoint(NamedTuple):
    """The states that a checkpoint names, counted for every rank."""

    states: IntArray
    new: IntArray
    """Those of them that the checkpoint before does not name."""


class DiskUsage:
    """The rows of every rank's segments over a sequence of checkpoints.

    Args:
        owner: [N], the rank of every client.
        ranks: how many.
        row_bytes: bytes of a row.
        keep: how many checkpoints are kept.
        shared: whether the clients of a rank and a round have one row together.
    """

    def __init__(
        self, owner: IntArray, ranks: int, row_bytes: int, keep: int, *, shared: bool
    ) -> None:
        self._owner, self._ranks = owner, ranks
        self._keep, self._shared = keep, shared
        self._kept: deque[_Checkpoint] = deque()
        self._later = np.zeros(ranks, np.int64)  # new states of all kept ones but the oldest
        self._newest = 0  # the last round of which there is a state
        self.row_bytes = row_bytes
        """Bytes of a row."""
        self.states = np.zeros(ranks, np.int64)
        """[ranks], different states that the clients have now."""
        self.rows = np.zeros(ranks, np.int64)
        """[ranks], the most rows that were needed on the disk so far."""
        self._files = np.zeros(ranks, np.int64)

    def commit(self, last: IntArray) -> None:
        """Add a checkpoint.

        Args:
            last: [N], the round of every client's state, 0 for none.
        """
        self.states, new = self._distinct(last, 0), self._distinct(last, self._newest)
        self._newest = int(last.max(initial=0))
        # A state that was replaced never comes back, so all kept checkpoints together name the
        # states of the oldest one and the new states of each later one.
        if self._kept:
            self._later = self._later + new
        self._kept.append(_Checkpoint(self.states, new))
        self.rows = np.maximum(self.rows, self._kept[0].states + self._later)
        # After the maximum: the oldest checkpoint is deleted only when the new one is committed.
        if len(self._kept) > self._keep:
            self._kept.popleft()
            self._later = self._later - self._kept[0].new

    def add_spare_rows(self, members: IntArray) -> None:
        """Add rows for the rounds that continue while a checkpoint is written.

        Args:
            members: [ranks], the most clients of a cohort that a rank owns.
        """
        spare = ROUNDS_BEFORE_COMMIT * (1 if self._shared else members)
        self.rows += np.where(self.rows, spare, 0)
        self._files = -(-self.rows // most_rows(self.row_bytes))

    @property
    def bytes(self) -> IntArray:
        """[ranks], the size of the segment files."""
        return self.rows * self.row_bytes + self._files * SEGMENT_HEADER

    def _distinct(self, last: IntArray, after: int) -> IntArray:
        """[ranks], how many different states the clients have of later rounds than ``after``."""
        later = last > after
        if not self._shared:
            return np.bincount(self._owner[later], minlength=self._ranks)
        span = 1 + int(last.max(initial=0))
        states = np.sort(self._owner[later] * span + last[later])
        states = states[np.diff(states, prepend=-1) > 0]  # as np.unique, a hundred times faster
        return np.bincount(states // span, minlength=self._ranks)
