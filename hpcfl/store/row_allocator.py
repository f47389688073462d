"""Allocate the rows of a rank's segments, and know which of them must not change."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hpcfl.errors import StoreError
from hpcfl.store import segment
from hpcfl.store.background_io import SegmentRow
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment
from hpcfl.types import IntArray

FIRST_ROWS, FIRST_BYTES = 64, 8 * 2**20  # the first segment has so many rows, or bytes if more
FILE_BYTES = 16 * 2**30  # of a segment at most, unless one row is larger
SEGMENT_HEADER = 2048  # bytes of a segment file before its rows; measured, 1 to 4 fields


def growth(have: int, clients: int, pinned: int, state_bytes: int) -> int:
    """How many rows to add when none of ``have`` rows, ``pinned`` of them, is free.

    An eighth of what there is, within the bounds: a segment is allocated whole, and little of it
    stays unused on a disk that is nearly full.
    """
    row_bytes = max(1, state_bytes)
    return min(
        max(_first_rows(row_bytes), have // 8),
        max(1, FILE_BYTES // row_bytes),
        2 * clients + pinned - have,
    )


def most_bytes(rows: int, clients: int, state_bytes: int) -> int:
    """Bytes of the segments, at most, of a rank that needs so many rows at a time.

    Args:
        rows: held by ``clients`` or pinned by checkpoints.
        clients: the rank's, of which each holds one row.
        state_bytes: of a row.
    """
    row_bytes = max(1, state_bytes)
    allocated = rows + min(max(_first_rows(row_bytes), rows // 8), 2 * clients) if rows else 0
    # A file has a row at least, and 128 of them, each an eighth of those before, hold billions.
    return allocated * row_bytes + min(allocated, 128) * SEGMENT_HEADER


def _first_rows(row_bytes: int) -> int:
    return max(FIRST_ROWS, FIRST_BYTES // row_bytes)


class RowAllocator:
    """The rows of all segments, numbered consecutively from 0; a row's number is its address.

    A row is held by the clients whose newest state it has, and pinned by kept checkpoints that name
    it.  A row that is neither is free.  A pinned row is never written: a run that is killed now
    resumes from it.  There are never more rows than twice the clients plus the pinned rows.
    """

    def __init__(
        self, root: Path, rank: int, session_id: str, schema: StateSchema, clients: int
    ) -> None:
        self._root, self._rank, self._session_id, self._schema = root, rank, session_id, schema
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
        return tuple(file.path.name for file in self._segments)

    def take(self) -> int:
        """Take a free row, from a new segment if none is left; return its address.

        Raises:
            DiskError: the disk is too small for one.
        """
        if not self._free:
            self._grow()
        return self._free.pop()

    def hold(self, address: int) -> None:
        """Count one more client that holds the row."""
        self._holders[address] += 1

    def release(self, address: int) -> bool:
        """Count one client less; return whether no client holds the row any more."""
        self._holders[address] -= 1
        last = not self._holders[address]
        if last and not self._pinned[address]:
            self._free.append(address)
        return last

    def replaceable(self, address: int) -> bool:
        """Whether the row may be overwritten: one client holds it, and it is not pinned."""
        return bool(self._holders[address] == 1 and not self._pinned[address])

    def locate(self, address: int) -> SegmentRow:
        """The segment and the row of an address."""
        index = bisect_right(self._starts, address) - 1
        return SegmentRow(self._segments[index], address - self._starts[index])

    def pin(self, addresses: IntArray) -> None:
        """Keep these rows unchanged until the next ``retain``."""
        self._pinned[addresses] = True

    def retain(self, pinned: IntArray) -> None:
        """Pin ``pinned``, and all rows of segments that may not be written; the others are free.

        A row that a client holds is not free, either.
        """
        self._pinned[:] = False
        self._pinned[pinned] = True
        for start, file in zip(self._starts, self._segments, strict=True):
            if not file.writable:
                self._pinned[start : start + file.rows] = True
        # The lowest address is taken first, so that neighbouring rows are written in order.
        free = np.flatnonzero(~self._pinned & (self._holders == 0))
        self._free = array("q", free[::-1].tolist())

    def reuse(self, paths: Iterable[Path]) -> None:
        """Open segments of an earlier session; all their rows are pinned until ``retain``.

        Raises:
            StoreError: one is missing, damaged, or open for writing elsewhere.
        """
        for path in paths:
            self._append(Segment.open(path, self._schema, "r+"), pinned=True)

    def restore(self, addresses: IntArray, crcs: IntArray) -> None:
        """Count a client as a holder for each address, and set the rows' checksums."""
        # Not ``+=``: an address may be there several times, for clients that share a row.
        np.add.at(self._holders, addresses, 1)
        index, rows = self.split(addresses)
        for number, file in enumerate(self._segments):
            own = index == number
            file.crcs[rows[own]] = crcs[own]

    def addresses(self, names: Sequence[str], segments: IntArray, rows: IntArray) -> IntArray:
        """The addresses of rows of named segments; -1 for a segment that is not open here.

        Args:
            names: file names of segments.
            segments: [n], an index into ``names``.
            rows: [n], in that segment.

        Raises:
            StoreError: a segment has no such row.
        """
        opened = {name: index for index, name in enumerate(self.names)}
        index = np.array([opened.get(name, -1) for name in names], np.int64)[segments]
        starts = np.array([*self._starts, 0], np.int64)[index]
        sizes = np.array([*(file.rows for file in self._segments), 0], np.int64)[index]
        if ((index >= 0) & (rows >= sizes)).any():
            raise StoreError(
                f"{self._root}: a row table names rows that its segments do not have; "
                "it is of another run: resume from an older checkpoint"
            )
        return np.where(index >= 0, starts + rows, -1)

    def split(self, addresses: IntArray) -> tuple[IntArray, IntArray]:
        """The index of the segment, and the row in it, of each address."""
        starts = np.array(self._starts, np.int64)
        index = np.searchsorted(starts, addresses, side="right") - 1
        return index, addresses - starts[index] if len(starts) else addresses

    def close(self) -> None:
        """Release the files."""
        while self._segments:
            self._segments.pop().close()

    def _grow(self) -> None:
        """Add a segment of free rows; its lowest address is taken first."""
        have, pinned = len(self._pinned), int(self._pinned.sum())
        rows = growth(have, self._clients, pinned, self._schema.bytes)
        path = self._root / segment.file_name(self._session_id, self._rank, self._created)
        self._append(Segment.create(path, self._schema, rows), pinned=False)
        self._created += 1
        self._free = array("q", range(have + rows - 1, have - 1, -1)) + self._free

    def _append(self, file: Segment, *, pinned: bool) -> None:
        self._starts.append(len(self._pinned))
        self._segments.append(file)
        self._pinned = np.concatenate([self._pinned, np.full(file.rows, pinned)])
        self._holders = np.concatenate([self._holders, np.zeros(file.rows, np.int32)])
