"""Allocate rows of a rank's segments: which are free, and which must not change."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DiskError, StoreError
from hpcfl.io.atomic import remove_part
from hpcfl.store import segment
from hpcfl.store.background_io import Place
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment

FIRST_ROWS, FIRST_BYTES = 64, 8 * 2**20  # the first segment has at least one of the two
FILE_BYTES = 16 * 2**30  # no segment is larger, unless one row is

Addresses = NDArray[np.int64]


def growth(have: int, clients: int, pinned: int, state_bytes: int) -> int:
    """Rows of the segment that is added when none of ``have`` rows, ``pinned`` of them, is free.

    As many as there are, within the bounds.  A run reserves all its rows beforehand.
    """
    each = max(1, state_bytes)
    rows = max(FIRST_ROWS, FIRST_BYTES // each, have)
    return min(rows, most_rows(each), 2 * clients + pinned - have)


def most_rows(state_bytes: int) -> int:
    """Rows of the largest segment."""
    return max(1, FILE_BYTES // max(1, state_bytes))


class RowAllocator:
    """Rows numbered from 0 on, through all segments; a row's number is its address.

    A row is free, or held by clients whose latest state it is, or pinned by a kept checkpoint, or
    both.  There are never more than twice the clients plus the pinned rows.
    """

    def __init__(
        self, root: Path, rank: int, session: str, schema: StateSchema, clients: int
    ) -> None:
        self._root, self._rank, self._session, self._schema = root, rank, session, schema
        self._clients = clients
        self._segments: list[Segment] = []
        self._starts = array("q")  # the first address of each segment
        self._pinned = np.zeros(0, np.bool_)
        self._holders = np.zeros(0, np.int32)  # how many clients hold each row
        self._free = array("q")  # a stack
        self._created = 0

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, in order."""
        return tuple(self._segments)

    @property
    def names(self) -> tuple[str, ...]:
        """The file names of the segments, in order."""
        return tuple(part.path.name for part in self._segments)

    @property
    def free(self) -> int:
        """How many rows are free."""
        return len(self._free)

    def ensure_rows(self, rows: int) -> None:
        """Have so many rows in all, free or not.

        Raises:
            DiskError: the disk is too small for them.
        """
        before = len(self._segments)
        try:
            while (missing := rows - len(self._pinned)) > 0:
                self._add(min(missing, most_rows(self._schema.bytes)))
        except (DiskError, StoreError):  # a quota may be full of those that were made
            for part in self._segments[before:]:
                remove_part(part.path)
            raise

    def ensure_free_rows(self, rows: int) -> None:
        """Have so many free rows.

        Raises:
            DiskError: the disk is too small for them.
        """
        self.ensure_rows(len(self._pinned) + rows - self.free)

    def take(self) -> int:
        """The address of a free row, in a new segment if need be.

        Raises:
            DiskError: the disk is too small for one.
        """
        if not self._free:
            self._grow()
        return self._free.pop()

    def hold(self, address: int) -> None:
        """Let one more client hold the row."""
        self._holders[address] += 1

    def release(self, address: int) -> bool:
        """Let one client less hold the row; whether none is left."""
        self._holders[address] -= 1
        last = not self._holders[address]
        if last and not self._pinned[address]:
            self._free.append(address)
        return last

    def changeable(self, address: int) -> bool:
        """Whether the row is one client's alone and no kept checkpoint needs it."""
        return bool(self._holders[address] == 1 and not self._pinned[address])

    def locate(self, address: int) -> Place:
        """The segment and the row of an address."""
        index = bisect_right(self._starts, address) - 1
        return Place(self._segments[index], address - self._starts[index])

    def pin(self, addresses: Addresses) -> None:
        """Promise these rows to a checkpoint."""
        self._pinned[addresses] = True

    def retain(self, pinned: Addresses) -> None:
        """Pin exactly ``pinned``; every row that is neither pinned nor held becomes free."""
        self._pinned[:] = False
        self._pinned[pinned] = True
        # Lowest address on top: neighbouring rows are written one after the other.
        free = np.flatnonzero(~self._pinned & (self._holders == 0))
        self._free = array("q", free[::-1].tolist())

    def adopt(self, paths: Iterable[Path]) -> None:
        """Take over segments of an earlier session, all rows pinned until the next ``retain``.

        Raises:
            StoreError: one is missing, damaged, or open for writing elsewhere.
        """
        for path in paths:
            self._append(Segment.open(path, self._schema, "r+"), pinned=True)

    def restore(self, addresses: Addresses, crcs: NDArray[np.int64]) -> None:
        """Let one client each hold these rows, whose checksums are known."""
        np.add.at(self._holders, addresses, 1)
        segments, rows = self.split(addresses)
        for index, part in enumerate(self._segments):
            own = segments == index
            part.crcs[rows[own]] = crcs[own]

    def addresses(
        self, names: Sequence[str], segments: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Addresses:
        """Addresses of rows of named segments; -1 for a segment that is not in the pool.

        Raises:
            StoreError: a segment has no such row.
        """
        mine = {name: index for index, name in enumerate(self.names)}
        index = np.array([mine.get(name, -1) for name in names], np.int64)[segments]
        starts = np.array([*self._starts, 0], np.int64)[index]
        sizes = np.array([*(part.rows for part in self._segments), 0], np.int64)[index]
        if ((index >= 0) & (rows >= sizes)).any():
            raise StoreError(
                f"{self._root}: a row table names rows that its segments do not have; "
                "it is of another run: resume from an older checkpoint"
            )
        return np.where(index >= 0, starts + rows, -1)

    def split(self, addresses: Addresses) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Segment and row of each address."""
        starts = np.array(self._starts, np.int64)
        index = np.searchsorted(starts, addresses, side="right") - 1
        return index, addresses - starts[index] if len(starts) else addresses

    def close(self) -> None:
        """Release the files."""
        while self._segments:
            self._segments.pop().close()

    def _grow(self) -> None:
        """Add a segment, though none was reserved."""
        have, pinned = len(self._pinned), int(self._pinned.sum())
        self._add(growth(have, self._clients, pinned, self._schema.bytes))

    def _add(self, rows: int) -> None:
        """Add a segment of free rows, the lowest address of which is taken first."""
        have = len(self._pinned)
        path = self._root / segment.name(self._session, self._rank, self._created)
        self._append(Segment.create(path, self._schema, rows), pinned=False)
        self._created += 1
        self._free = array("q", range(have + rows - 1, have - 1, -1)) + self._free

    def _append(self, part: Segment, *, pinned: bool) -> None:
        self._starts.append(len(self._pinned))
        self._segments.append(part)
        self._pinned = np.concatenate([self._pinned, np.full(part.rows, pinned)])
        self._holders = np.concatenate([self._holders, np.zeros(part.rows, np.int32)])
