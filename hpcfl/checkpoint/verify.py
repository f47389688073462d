"""Verify the client states of a checkpoint before a run resumes from it."""

from collections.abc import Iterable, Sequence
from typing import Any

from hpcfl.io.progress import track
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment
from hpcfl.types import IntArray


def verify_states(
    table: Table,
    schema: StateSchema,
    clients: Sequence[int] | IntArray,
    *,
    rows: bool,
    show_progress: bool,
) -> None:
    """Check the segment files of clients' states and, with ``rows``, every state's checksum.

    Args:
        table: the checkpoint's row table.
        schema: of a whole state.
        clients: whose states are checked.
        rows: whether to read all states, which takes as long as the disk needs.
        show_progress: whether to print how far it is.

    Raises:
        StoreError: a segment is missing or damaged, or a state's checksum is wrong.
    """
    parts = [(table.own, schema.own if table.shared else schema)]
    if table.shared:
        parts.append((table.shared, schema.shared))
    for part, fields in parts:
        entries = part.for_clients(clients)
        for index in sorted(set(entries.segments.tolist())):
            Segment.open(entries.paths[index], fields, "r").close()
        if rows:
            with Reader(entries, fields) as reader:
                states: Iterable[Any] = reader.all()
                if show_progress:
                    states = track(states, "verified states", entries.clients.size)
                for _ in states:  # reading a state compares its checksum
                    pass
