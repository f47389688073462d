"""Background threads that read, checksum, write and flush rows of segments.

Reads, writes and snapshots have a thread each, so that a flush, which may take long, delays no
read.  Checksums have threads of their own, so that the disk is busy while they are computed.

Nothing here orders a read of a row after a write of it: the caller must take a state that is still
being written from memory.  Nor are ``write`` and ``write_for_snapshot`` ordered: a row that waits
for a ``write`` must not get a ``write_for_snapshot``.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from torch import Tensor

from hpcfl.store.reader import check_row
from hpcfl.store.segment import Segment, checksum


class SegmentRow(NamedTuple):
    """A row of an open segment."""

    segment: Segment
    row: int


class BackgroundIO:
    """The threads of one store."""

    def __init__(self) -> None:
        self._reads, self._checks, self._writes, self._sums, self._snapshots = (
            ThreadPoolExecutor(1, f"store-{name}")
            for name in ("read", "check", "write", "sum", "snapshot")
        )

    def read(
        self, at: SegmentRow, client: int, target: Iterable[Tensor]
    ) -> "Future[Iterable[Tensor]]":
        """Read a row into ``target`` and compare its checksum.

        Returns:
            A future of ``target``, which raises StoreError if the row cannot be read or its
            checksum is wrong.  ``client`` is for that message only.
        """
        crc = self._reads.submit(_read, at, target)
        return self._checks.submit(_verify, at, target, crc, client)

    def write(self, at: SegmentRow, state: Iterable[Tensor]) -> "Future[None]":
        """Write a row; the future raises StoreError or DiskError if the disk fails."""
        return self._writes.submit(_write, at, state, self._sums.submit(checksum, state))

    def write_for_snapshot(self, at: SegmentRow, state: Iterable[Tensor]) -> "Future[None]":
        """As ``write``, on the snapshots' thread, where no write of a later round delays it."""
        return self._snapshots.submit(_write, at, state, self._sums.submit(checksum, state))

    def flush(
        self,
        written: Sequence["Future[None]"],
        segments: Iterable[Segment],
        then: Callable[[], None],
    ) -> "Future[None]":
        """Fsync ``segments`` once all of ``written`` are done, then call ``then``.

        The future raises StoreError or DiskError if a row could not be written or the disk fails.
        """
        return self._snapshots.submit(_flush, written, tuple(segments), then)

    def close(self) -> None:
        """Finish the calls that are being executed; those that are queued are cancelled."""
        # A check waits for its read, a flush for writes, a write for its checksum.  In this order
        # such a future is done or cancelled, or its thread still runs: nothing waits for ever.
        for executor in (self._reads, self._checks, self._writes, self._snapshots, self._sums):
            executor.shutdown(cancel_futures=True)


def _read(at: SegmentRow, target: Iterable[Tensor]) -> int:
    """Read a row; return the checksum that it should have."""
    crc = int(at.segment.crcs[at.row])
    at.segment.fill(at.row, target)
    return crc


def _verify(
    at: SegmentRow, target: Iterable[Tensor], crc: "Future[int]", client: int
) -> Iterable[Tensor]:
    check_row(at.segment, at.row, target, crc.result(), client)
    return target


def _write(at: SegmentRow, state: Iterable[Tensor], crc: "Future[int]") -> None:
    at.segment.write(at.row, state)
    at.segment.crcs[at.row] = crc.result()


def _flush(
    written: Sequence["Future[None]"], segments: Sequence[Segment], then: Callable[[], None]
) -> None:
    for row in written:
        row.result()
    for segment in segments:
        segment.flush()
    then()
