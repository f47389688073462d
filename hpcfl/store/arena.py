"""Allocate host memory for client states in large blocks, so that the heap does not fragment.

Cached states stay for many rounds, among tensors that every local step allocates and frees.  If
``malloc`` placed both, the freed memory between the states would be too small for later requests,
and the process would take up to twice the memory of its states.
"""

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.store.footprint import offsets
from hpcfl.store.schema import StateSchema

FIRST_STATES = 8  # size of the first block, in states
BLOCK_BYTES = 1 << 26  # size of a block at most, unless one state is larger


class StateArena:
    """Memory for states of one schema; any thread may use it.

    A block is never returned to the system; its slots are used again for other states.
    """

    def __init__(self, schema: StateSchema) -> None:
        starts, self._size = offsets(schema)
        self._fields = list(zip(schema.fields, starts, strict=True))
        self._blocks: list[Tensor] = []
        self._free: list[int] = []  # memory addresses of free slots
        # Only ``allocate`` takes the lock.  ``_Slot.__del__`` must not: the garbage collector may
        # run it in a thread that holds the lock already, which would then wait for itself.
        self._lock = Lock()

    def copy_of(self, state: Sequence[Tensor], *, borrow: bool = False) -> Iterable[Tensor]:
        """A copy of a state in a slot of its own.

        Args:
            state: tensors of the schema.
            borrow: return the state itself, uncopied, for a caller that needs it for a short time.
                Pinned tensors are never copied: a GPU may read them where they are.

        Returns:
            An iterable that gives new tensor views each time.  The slot is free again when the
            iterable and all views are gone.

        Raises:
            ValueError: the tensors are not of the schema.
        """
        for (field, _), tensor in zip(self._fields, state, strict=True):
            field.check(tensor)
        if borrow or any(tensor.is_pinned() for tensor in state):
            return state
        slot = self.allocate()
        for target, tensor in zip(slot, state, strict=True):
            target.copy_(tensor)
        return slot

    def allocate(self) -> Iterable[Tensor]:
        """A slot for one state, its content undefined; returned as ``copy_of`` returns it."""
        with self._lock:
            if not self._free:
                self._grow()
            return _Slot(self, self._free.pop())

    def _grow(self) -> None:
        """Add a block as large as all present ones together, within the bounds."""
        largest = max(1, BLOCK_BYTES // self._size) * self._size
        present = sum(block.nbytes for block in self._blocks)
        wanted = min(present or FIRST_STATES * self._size, largest)
        block = torch.empty(wanted, dtype=torch.uint8)
        self._blocks.append(block)
        self._free += range(block.data_ptr(), block.data_ptr() + block.nbytes, self._size)[::-1]


class _Slot:
    """The memory of one state in an arena; frees itself when nothing refers to it."""

    __slots__ = ("_address", "_arena")

    def __init__(self, arena: StateArena, address: int) -> None:
        self._arena, self._address = arena, address

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The slot as a numpy array of bytes, which holds a reference to the slot."""
        size = self._arena._size
        return {"version": 3, "typestr": "|u1", "shape": (size,), "data": (self._address, False)}

    def __iter__(self) -> Iterator[Tensor]:
        content = torch.from_numpy(np.asarray(self))
        for field, start in self._arena._fields:
            yield content[start : start + field.bytes].view(field.dtype).view(field.shape)

    def __del__(self) -> None:
        self._arena._free.append(self._address)
