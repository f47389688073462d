"""Compute the host memory that one cached client state takes."""

from hpcfl.store.schema import StateSchema

ALIGNMENT = 64  # bytes: a cache line of the processor, to which torch aligns tensors too
BLOCK_BYTES = 1 << 26  # of a block of an arena at most, unless one slot is larger
STATE_OVERHEAD = 300  # bytes of the Python objects of a cached state; measured as resident memory


def offsets(schema: StateSchema) -> tuple[list[int], int]:
    """The offset of each tensor of a state in its slot of memory, and the slot's size, in bytes."""
    starts, end = [], 0
    for field in schema.fields:
        starts.append(end)
        end += -(-field.bytes // ALIGNMENT) * ALIGNMENT
    return starts, max(end, ALIGNMENT)


def pinned_bytes(size: int) -> int:
    """Bytes of pinned memory that torch takes for ``size``: the next power of two."""
    return 1 << (size - 1).bit_length()


def block_bytes(size: int, *, pinned: bool) -> int:
    """Bytes of the largest blocks of an arena.

    Args:
        size: of a slot.
        pinned: whether they are; then they have room for four slots, and waste a fifth at most.
    """
    if pinned:
        return max(BLOCK_BYTES, pinned_bytes(4 * size))
    return max(1, BLOCK_BYTES // size) * size


def footprint(schema: StateSchema, *, pinned: bool = False) -> int:
    """Bytes of memory of one cached state, Python objects included."""
    _, size = offsets(schema)
    block = block_bytes(size, pinned=pinned)
    return -(-block // (block // size)) + STATE_OVERHEAD
