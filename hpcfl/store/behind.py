"""The disk's side of a store: rows are read and written while the rank computes.

One thread reads and writes rows in the order asked for, so that what is read is what was written
last, though nobody waited for it.  Another computes checksums meanwhile.  A third brings rows to
the disk, which may take long, so that reading goes on.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import StoreError
from hpcfl.store.base import StateSchema
from hpcfl.store.reader import verified
from hpcfl.store.segment import Segment, checksum

Ints = NDArray[np.int64]


class Behind:
    """Reads and writes rows of segments behind the back of the thread that asks for it."""

    def __init__(self, schema: StateSchema) -> None:
        self._schema = schema
        self._rows = ThreadPoolExecutor(1, "store-rows")
        self._sums = ThreadPoolExecutor(1, "store-sums")
        self._flushes = ThreadPoolExecutor(1, "store-flush")
        self._unflushed: set[Segment] = set()
        self._failed: StoreError | None = None

    def read(self, part: Segment, row: int, client: int) -> "Future[Any]":
        """The client's state in a row, once all that was asked for before is done.

        The future raises StoreError if the row cannot be read or its checksum is wrong.
        """
        return self._rows.submit(
            lambda: verified(part, row, int(part.crcs[row]), client, self._schema)
        )

    def write(self, part: Segment, row: int, state: Sequence[Any]) -> "Future[None]":
        """Replace a row.

        The future, and that of every later flush, raises StoreError if the disk fails.
        """
        return self._rows.submit(self._write, part, row, state, self._sums.submit(checksum, state))

    def flush(
        self, parts: Sequence[Segment], index: Ints, rows: Ints, then: Callable[[Ints], None]
    ) -> "Future[None]":
        """Bring all that was written so far to the disk, and go on with ``then``.

        Args:
            parts: segments.
            index: the segment of each of n rows.
            rows: the rows, [n].
            then: takes the checksums of the rows as they are by now, [n].
        """
        marked = self._rows.submit(self._mark, parts, index, rows)
        return self._flushes.submit(self._flush, marked, then)

    def close(self) -> None:
        """Finish what was asked for."""
        self._rows.shutdown()
        self._sums.shutdown()
        self._flushes.shutdown()

    def _write(self, part: Segment, row: int, state: Sequence[Any], crc: "Future[int]") -> None:
        try:
            part.write(row, state)
        except StoreError as error:
            self._failed = error
            raise
        part.crcs[row] = crc.result()
        self._unflushed.add(part)

    def _mark(self, parts: Sequence[Segment], index: Ints, rows: Ints) -> "_Marked":
        if self._failed:
            raise self._failed
        crcs = np.zeros(len(rows), np.int64)
        for k, part in enumerate(parts):
            crcs[index == k] = part.crcs[rows[index == k]]
        written, self._unflushed = self._unflushed, set()
        return _Marked(crcs, written)

    def _flush(self, marked: "Future[_Marked]", then: Callable[[Ints], None]) -> None:
        crcs, written = marked.result()
        for part in written:
            part.flush()
        then(crcs)


class _Marked(NamedTuple):
    """What a flush is to bring to the disk."""

    crcs: Ints
    written: set[Segment]
