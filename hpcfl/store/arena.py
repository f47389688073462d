"""An arena of host memory for client states, which leaves no gaps in the heap.

Tensors that stay, among others that come and go with every step, leave gaps in the C library's heap
that nothing fits into: they take up to twice their size.  Here states lie side by side in large
blocks, which the process keeps, and nothing small stays in the heap for them.
"""

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.store.footprint import offsets
from hpcfl.store.schema import StateSchema

FIRST = 8  # states
BLOCK = 1 << 26  # bytes, unless a state is larger


class StateArena:
    """Memory for states of one schema, for any thread."""

    def __init__(self, schema: StateSchema) -> None:
        starts, self._size = offsets(schema)
        self._fields = list(zip(schema.fields, starts, strict=True))
        self._blocks: list[Tensor] = []
        self._free: list[int] = []  # addresses
        # Giving back takes no lock: the garbage collector may do so while this thread holds it.
        self._lock = Lock()

    def keep(self, state: Sequence[Tensor], *, briefly: bool = False) -> Iterable[Tensor]:
        """A copy of a state; or the state itself, to keep it briefly or for a GPU to read it there.

        Every iteration over it makes its tensors anew.  Its place is free again when it and all
        that was made of it are gone.

        Raises:
            ValueError: the tensors are not of the schema.
        """
        for (field, _), tensor in zip(self._fields, state, strict=True):
            field.check(tensor)
        if briefly or any(tensor.is_pinned() for tensor in state):
            return state
        kept = self.place()
        for home, tensor in zip(kept, state, strict=True):
            home.copy_(tensor)
        return kept

    def place(self) -> Iterable[Tensor]:
        """Where a state may be put, its tensors of undefined content; as ``keep`` returns it."""
        with self._lock:
            if not self._free:
                self._grow()
            return _Kept(self, self._free.pop())

    def _grow(self) -> None:
        """Add a block, as large as all the others together."""
        largest = max(1, BLOCK // self._size) * self._size
        have = sum(block.nbytes for block in self._blocks)
        block = torch.empty(min(have or FIRST * self._size, largest), dtype=torch.uint8)
        self._blocks.append(block)
        self._free += range(block.data_ptr(), block.data_ptr() + block.nbytes, self._size)[::-1]


class _Kept:
    """A state's place on a shelf."""

    __slots__ = ("_address", "_shelf")

    def __init__(self, shelf: StateArena, address: int) -> None:
        self._shelf, self._address = shelf, address

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Lets numpy see the bytes; what it makes of them keeps this place taken."""
        size = self._shelf._size
        return {"version": 3, "typestr": "|u1", "shape": (size,), "data": (self._address, False)}

    def __iter__(self) -> Iterator[Tensor]:
        place = torch.from_numpy(np.asarray(self))
        for field, start in self._shelf._fields:
            yield place[start : start + field.bytes].view(field.dtype).view(field.shape)

    def __del__(self) -> None:
        self._shelf._free.append(self._address)
