"""Background threads that read, checksum, write and flush rows.

Rows that a round asks for are read on one thread, rows that it lets go of are written on another,
and a commit writes and flushes on a third, which may take long; checksums have threads of their
own, so that the disk need not wait.  Nothing here knows in which order reads and writes of a row
must come: who asks for a row that is on its way to the disk must take it from memory.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from torch import Tensor

from hpcfl.store.reader import verify
from hpcfl.store.segment import Segment, checksum


class Place(NamedTuple):
    """A row of a segment."""

    part: Segment
    row: int


class BackgroundIO:
    """Reads and writes rows behind the back of the thread that asks for it."""

    def __init__(self) -> None:
        self._reads, self._checks, self._writes, self._sums, self._commits = (
            ThreadPoolExecutor(1, f"store-{name}")
            for name in ("read", "check", "write", "sum", "commit")
        )

    def read(self, place: Place, client: int, home: Iterable[Tensor]) -> "Future[Iterable[Tensor]]":
        """Read the client's state from a row into ``home``, which the future gives.

        The future raises StoreError if the row cannot be read or its checksum is wrong.
        """
        crc = self._reads.submit(_read, place, home)
        return self._checks.submit(_checked, place, home, crc, client)

    def write(self, place: Place, state: Iterable[Tensor]) -> "Future[None]":
        """Replace a row.

        The future raises StoreError if the disk fails.
        """
        return self._writes.submit(_write, place, state, self._sums.submit(checksum, state))

    def write_of_commit(self, place: Place, state: Iterable[Tensor]) -> "Future[None]":
        """Replace a row, after those of the commit that were asked for before."""
        return self._commits.submit(_write, place, state, self._sums.submit(checksum, state))

    def flush(
        self,
        written: Sequence["Future[None]"],
        parts: Iterable[Segment],
        then: Callable[[], None],
    ) -> "Future[None]":
        """Bring segments to the disk once these rows are written, and go on with ``then``.

        The future raises StoreError if a row could not be written or the disk fails.
        """
        return self._commits.submit(_flush, written, tuple(parts), then)

    def close(self) -> None:
        """End what was begun; what was only asked for is lost."""
        # A check waits for its read, a flush for writes, a write for its checksum.
        for thread in (self._reads, self._checks, self._writes, self._commits, self._sums):
            thread.shutdown(cancel_futures=True)


def _read(place: Place, home: Iterable[Tensor]) -> int:
    """Read a row; the checksum that it should have."""
    crc = int(place.part.crcs[place.row])
    place.part.fill(place.row, home)
    return crc


def _checked(
    place: Place, home: Iterable[Tensor], crc: "Future[int]", client: int
) -> Iterable[Tensor]:
    verify(place.part, place.row, home, crc.result(), client)
    return home


def _write(place: Place, state: Iterable[Tensor], crc: "Future[int]") -> None:
    place.part.write(place.row, state)
    place.part.crcs[place.row] = crc.result()


def _flush(
    written: Sequence["Future[None]"], parts: Sequence[Segment], then: Callable[[], None]
) -> None:
    for row in written:
        row.result()
    for part in parts:
        part.flush()
    then()
