"""Read the client states of a checkpoint, whichever ranks wrote them."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from hpcfl.errors import StoreError
from hpcfl.store import segment
from hpcfl.store.row_table import RowEntry, Table
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment

OPEN_FILES = 64  # at once; a run may have more segments than a process may open files


class Reader:
    """Reads the states that a row table names; a context manager that closes the files."""

    def __init__(self, table: Table, schema: StateSchema) -> None:
        self._table, self._whole = table, schema
        self._schema = schema.own if table.shared else schema
        self._shared = Reader(table.shared, schema.shared) if table.shared else None
        self._open: OrderedDict[Path, Segment] = OrderedDict()

    def read(self, client: int) -> Any | None:
        """The client's state, or None if it has none.

        Raises:
            StoreError: its file is missing or damaged, or its checksum is wrong.
        """
        entry = self._table.find(client)
        if entry is None:
            return None
        state = self._read_row(entry, client)
        return self._whole.join(state, self._shared.read(client)) if self._shared else state

    def all(self) -> Iterator[tuple[int, Any]]:
        """Every client of the table and its state, without the shared part, in the disk's order.

        Equal states come one after the other and as one object, also where several ranks wrote
        them, so that a store that saves them in this order stores them once.

        Raises:
            StoreError: a file is missing or damaged, or a checksum is wrong.
        """
        table = self._table
        # Sort by segment and row, then move rows of one checksum to where the first of them is.
        by_row = np.lexsort((table.rows, table.segments))
        _, first, group = np.unique(table.crcs[by_row], return_index=True, return_inverse=True)
        order = by_row[np.argsort(first[group], kind="stable")]
        previous, state = None, None
        for at in order.tolist():
            entry, client = table.entry(at), int(table.clients[at])
            if entry != previous:
                found = self._read_row(entry, client)
                # Different states may have one checksum, so their bytes are compared.
                state = state if state and segment.same_bits(found, state) else found
                previous = entry
            yield client, state

    def close(self) -> None:
        """Release the files."""
        if self._shared:
            self._shared.close()
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_row(self, entry: RowEntry, client: int) -> Any:
        source = self._segment(entry.path)
        tensors = source.read(entry.row)
        check_row(source, entry.row, tensors, entry.crc, client)
        return self._schema.type(*tensors)

    def _segment(self, path: Path) -> Segment:
        if path not in self._open:
            if len(self._open) == OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            self._open[path] = Segment.open(path, self._schema, "r")
        return self._open[path]


def check_row(source: Segment, row: int, tensors: Iterable[Tensor], crc: int, client: int) -> None:
    """Compare the checksum of a client's state, read from a row of ``source``, with ``crc``.

    Raises:
        StoreError: they differ.
    """
    found = segment.checksum(tensors)
    if found != crc:
        raise StoreError(
            f"{source.path}: row {row} (client {client}): found checksum {found:08x}, expected "
            f"{crc:08x}; the state is damaged: resume from an older checkpoint"
        )
