"""Compute the host memory that one cached client state takes."""

from hpcfl.store.schema import StateSchema

ALIGNMENT = 64  # bytes: a cache line of the processor, to which torch aligns tensors too
STATE_OVERHEAD = 300  # bytes of the Python objects of a cached state; measured as resident memory


def offsets(schema: StateSchema) -> tuple[list[int], int]:
    """The offset of each tensor of a state in its slot of memory, and the slot's size, in bytes."""
    starts, end = [], 0
    for field in schema.fields:
        starts.append(end)
        end += -(-field.bytes // ALIGNMENT) * ALIGNMENT
    return starts, max(end, ALIGNMENT)


def footprint(schema: StateSchema) -> int:
    """Bytes of memory of one cached state, Python objects included."""
    return offsets(schema)[1] + STATE_OVERHEAD
