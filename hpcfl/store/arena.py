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

from hpcfl.store.footprint import block_bytes, offsets, pinned_bytes
from hpcfl.store.schema import StateSchema

FIRST_STATES = 8  # size of the first block, in states


class StateArena:
    """Memory for states of one schema; any thread may use it.

    A block is never returned to the system; its slots are used again for other states.

    Args:
        schema: the shape of a state.
        pinned: whether a GPU is to copy them at full speed.  torch rounds up each piece of pinned
            memory and takes long to get it, so that a block is one piece.
    """

    def __init__(self, schema: StateSchema, *, pinned: bool = False) -> None:
        starts, self._size = offsets(schema)
        self._pinned = pinned
        self._fields = list(zip(schema.fields, starts, strict=True))
        self._blocks: list[Tensor] = []
        self._free: list[int] = []  # memory addresses of free slots
        # Only ``allocate`` takes the lock.  ``_Slot.__del__`` must not: the garbage collector may
        # run it in a thread that holds the lock already, which would then wait for itself.
        self._lock = Lock()

    def copy_of(self, state: Sequence[Tensor], *, borrow: bool = False) -> Iterable[Tensor]:
        """A copy of a state in a slot of its own.

        Args:
            state: tensors of the schema, of any device.
            borrow: return the state itself, uncopied, for a caller that needs it for a short time,
                where it is in the CPU's memory.

        Returns:
            An iterable that gives new tensor views each time.  The slot is free again when the
            iterable and all views are gone.

        Raises:
            ValueError: the tensors are not of the schema.
        """
        for (field, _), tensor in zip(self._fields, state, strict=True):
            field.check(tensor)
        if borrow and all(tensor.device.type == "cpu" for tensor in state):
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
        present = sum(block.nbytes for block in self._blocks)
        wanted = min(
            present or FIRST_STATES * self._size, block_bytes(self._size, pinned=self._pinned)
        )
        size = pinned_bytes(wanted) if self._pinned else wanted
        block = torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)
        self._blocks.append(block)
        first, slots = block.data_ptr(), size // self._size
        self._free += range(first, first + slots * self._size, self._size)[::-1]


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
