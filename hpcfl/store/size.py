"""What a store will take on the disk, from who takes part when: nothing is trained or written.

A state is known here by the round it was made in.  Every client has one of its own; a part of it
that all clients of a round share is kept once a rank for every round that one of them was last
seen in.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcfl.store.pool import growth

HEADER = 2048  # bytes of a segment file before its rows; measured, 1 to 4 fields
INDEX = 1300  # bytes of a row table without rows; measured
ENTRY = 32  # bytes of a row in a row table: four int64

Counts = NDArray[np.int64]


class Occupancy:
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
        self._clients = np.bincount(owner, minlength=ranks)
        self._holders = owner if shared else np.arange(len(owner))
        self._owner = np.arange(ranks) if shared else owner  # of a holder
        self._keep, self._shared, self._memory = keep, shared, memory
        self._kept: list[Counts] = []
        self.each = each
        """Bytes of a row."""
        self.states = np.zeros(ranks, np.int64)
        """Different states that the clients have now; of every rank."""
        self.rows = np.zeros(ranks, np.int64)
        """Rows on the disk, used or not, at most so far; of every rank."""
        self.bytes = np.zeros(ranks, np.int64)
        """What they take; of every rank."""

    def commit(self, last: Counts) -> None:
        """Take a checkpoint; ``last`` [N] is the round of every client's state, 0 for none."""
        every = [*self._kept, last]
        self.states = self._busy([last])
        if self._memory:
            files = np.array([self._busy([one]) for one in every])
            rows, segments = files.sum(0), (files > 0).sum(0)
        else:
            rows, segments = self._grown(self._busy(self._kept), self._busy(every))
        self.rows = np.maximum(self.rows, rows)
        self.bytes = np.maximum(self.bytes, rows * self.each + segments * HEADER)
        self._kept = every[-self._keep :]

    def _grown(self, pinned: Counts, busy: Counts) -> tuple[Counts, Counts]:
        """The rows and segments of every rank that now needs ``busy`` rows."""
        rows = self.rows.copy()
        segments = (self.bytes - rows * self.each) // HEADER
        # A shared row is taken before those that it replaces are let go.
        need = busy + (busy > 0) if self._shared else busy
        for rank in np.flatnonzero(rows < need):
            while rows[rank] < need[rank]:
                have, clients = int(rows[rank]), int(self._clients[rank])
                rows[rank] += growth(have, clients, min(have, int(pinned[rank])), self.each)
                segments[rank] += 1
        return rows, segments

    def _busy(self, commits: Sequence[Counts]) -> Counts:
        """How many different states these commits name, of every rank."""
        span = 1 + max((int(last.max()) for last in commits), default=0)
        named = [(self._holders * span + last)[last > 0] for last in commits]
        states = np.unique(np.concatenate([np.zeros(0, np.int64), *named]))
        return np.bincount(self._owner[states // span], minlength=len(self._clients))
