"""Read the states of a checkpoint, whichever rank wrote them."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from hpcfl.errors import StoreError
from hpcfl.store import segment
from hpcfl.store.row_table import Place, Table
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment

OPEN_FILES = 64  # a machine may have more segments than a process has handles


class Reader:
    """Reads the states of a checkpoint, from whatever rank wrote them; a context manager."""

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
        place = self._table.find(client)
        if place is None:
            return None
        state = self._at(place, client)
        return self._whole.join(state, self._shared.read(client)) if self._shared else state

    def all(self) -> Iterator[tuple[int, Any]]:
        """Every client and its state, shared parts apart, in the order of the disk.

        Equal states follow each other and are one object, though several ranks wrote them.

        Raises:
            StoreError: a file is missing or damaged, or a checksum is wrong.
        """
        table = self._table
        disk = np.lexsort((table.rows, table.segments))
        _, first, group = np.unique(table.crcs[disk], return_index=True, return_inverse=True)
        order = disk[np.argsort(first[group], kind="stable")]
        last, state = None, None
        for at in order.tolist():
            place, client = table.place(at), int(table.clients[at])
            if place != last:
                found = self._at(place, client)
                state = state if state and segment.same_bits(found, state) else found
                last = place
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

    def _at(self, place: Place, client: int) -> Any:
        source = self._segment(place.path)
        tensors = source.read(place.row)
        verify(source, place.row, tensors, place.crc, client)
        return self._schema.type(*tensors)

    def _segment(self, path: Path) -> Segment:
        if path not in self._open:
            if len(self._open) == OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            self._open[path] = Segment.open(path, self._schema, "r")
        return self._open[path]


def verify(source: Segment, row: int, tensors: Iterable[Tensor], crc: int, client: int) -> None:
    """Compare the checksum of the client's state, as it was read from a row.

    Raises:
        StoreError: it is not ``crc``.
    """
    found = segment.checksum(tensors)
    if found != crc:
        raise StoreError(
            f"{source.path}: row {row} (client {client}): found checksum {found:08x}, expected "
            f"{crc:08x}; the state is damaged: resume from an older checkpoint"
        )
