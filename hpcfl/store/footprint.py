"""The host memory of one client state."""

from hpcfl.store.schema import StateSchema

ALIGNMENT = 64  # bytes, of a processor's cache line, as torch aligns its tensors
STATE_OVERHEAD = 300  # bytes of a cached state's objects and entries; measured as resident memory


def offsets(schema: StateSchema) -> tuple[list[int], int]:
    """Where a state's tensors begin, and where the next state does, in bytes."""
    starts, end = [], 0
    for field in schema.fields:
        starts.append(end)
        end += -(-field.bytes // ALIGNMENT) * ALIGNMENT
    return starts, max(end, ALIGNMENT)


def footprint(schema: StateSchema) -> int:
    """Bytes of memory that one cached state takes."""
    return offsets(schema)[1] + STATE_OVERHEAD
