"""Verify the client states of a checkpoint before a run resumes from it."""

from collections.abc import Sequence

from hpcfl.io.progress import track
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Ints, Table
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment


def verify_states(
    table: Table, schema: StateSchema, clients: Sequence[int] | Ints, *, rows: bool, speak: bool
) -> None:
    """Check the segments of these clients' states and, with ``rows``, every state's checksum.

    Args:
        table: of the checkpoint.
        schema: the shape of a whole state.
        clients: whose states.
        rows: read them all, which takes as long as the disk needs.
        speak: tell how far it is, where it takes long.

    Raises:
        StoreError: a segment is missing or damaged, or a state's checksum is wrong.
    """
    parts = [(table.own, schema.own if table.shared else schema)]
    if table.shared:
        parts.append((table.shared, schema.shared))
    for whole, fields in parts:
        part = whole.for_clients(clients)
        for index in sorted(set(part.segments.tolist())):
            Segment.open(part.paths[index], fields, "r").close()
        if rows:
            with Reader(part, fields) as reader:
                states = reader.all()
                for _ in track(states, "verified states", part.clients.size) if speak else states:
                    pass
