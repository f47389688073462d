"""What a client state costs in memory."""

from hpcfl.store.base import StateSchema

# What the objects of a cached state cost beside its numbers; measured as resident memory.
STATE_OVERHEAD = 200  # bytes a state: its tuple, its entry in the cache
TENSOR_OVERHEAD = 550  # bytes a tensor: its Python object, its C++ objects, alignment


def footprint(schema: StateSchema) -> int:
    """Bytes of memory that one cached state takes."""
    return schema.bytes + STATE_OVERHEAD + TENSOR_OVERHEAD * len(schema.fields)
