"""Move client states between the store and the device."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from hpcfl.clients.assignment import Assignment
from hpcfl.store.base import ClientStore
from hpcfl.store.schema import StateSchema
from hpcfl.types import Vector


class ClientStates:
    """Loads and saves the states of a rank's clients.

    Hooks take and return states on the device, in the dtypes of the algorithm; the store gets them
    there, perhaps in other dtypes (``store.dtype``).

    Args:
        store: keeps the states between rounds.
        schema: of a state as hooks take it.
        stored: of a state in the store.
        first: gives the state of a client that has none yet.
        device: of the model.
    """

    def __init__(
        self,
        store: ClientStore,
        schema: StateSchema,
        stored: StateSchema,
        first: Callable[[int], Any],
        device: torch.device,
    ) -> None:
        self._store, self._first, self._device = store, first, device
        self._dtypes = [field.dtype for field in schema.fields]
        self._stored_dtypes = [field.dtype for field in stored.fields]
        self._elapsed_s = 0.0

    def load(self, assignment: Assignment, upcoming: Assignment) -> list[Any]:
        """The states of the clients that this rank trains in this round.

        The store starts to read those of ``upcoming``, the next round.

        Raises:
            StoreError: a state cannot be read.
        """
        began = perf_counter()
        states = [self.to_device(client, self.read(client)) for client in assignment.trained]
        self.prefetch(upcoming.trained)
        self._elapsed_s += perf_counter() - began
        return states

    def save(self, assignment: Assignment, states: Sequence[Any], x: Vector) -> None:
        """Store the new states of the clients that this rank trained.

        Args:
            assignment: this rank's.
            states: of its ``trained`` clients.
            x: the model that all of them received; states that keep it share this tensor.

        Raises:
            DiskError: the disk is full or fails.
        """
        began = perf_counter()
        self.write(assignment.trained, states, x)
        self._elapsed_s += perf_counter() - began

    def pop_elapsed_s(self) -> float:
        """Seconds that rounds waited for states since the last call."""
        elapsed, self._elapsed_s = self._elapsed_s, 0.0
        return round(elapsed, 9)

    def prefetch(self, clients: Sequence[int]) -> None:
        """Start to read the states of these clients."""
        self._store.prefetch(clients)

    def read(self, client: int) -> Any | None:
        """The client's state as the store has it; None if it has none yet.

        Raises:
            StoreError: it cannot be read.
        """
        return self._store.load(client)

    def to_device(self, client: int, stored: Any | None) -> Any:
        """A stored state as hooks take it; the client's first state where ``stored`` is None."""
        if stored is None:
            return self._first(client)
        pairs = zip(stored, self._dtypes, strict=True)
        # The copies must have been made: the store may reuse its memory as soon as this returns.
        return type(stored)(*(leaf.to(self._device, dtype) for leaf, dtype in pairs))

    def write(self, clients: Sequence[int], states: Sequence[Any], x: Vector) -> None:
        """Hand new states to the store; a field that is ``x`` itself is stored once for all.

        Raises:
            DiskError: the disk is full or fails.
        """
        shared = {dtype: x.to(dtype) for dtype in self._dtypes_of(x, states)}
        for client, state in zip(clients, states, strict=True):
            leaves = (
                shared[dtype] if leaf is x else _alone(leaf.to(self._device, dtype))
                for leaf, dtype in zip(state, self._stored_dtypes, strict=True)
            )
            self._store.save(client, type(state)(*leaves))

    def _dtypes_of(self, x: Vector, states: Sequence[Any]) -> set[torch.dtype]:
        """The dtypes in which the store keeps ``x`` for these states."""
        pairs = (zip(state, self._stored_dtypes, strict=True) for state in states)
        return {dtype for fields in pairs for leaf, dtype in fields if leaf is x}


def _alone(leaf: Tensor) -> Tensor:
    """The tensor; a copy of a view, which would keep all of a larger tensor while it is stored."""
    return leaf.clone() if leaf.untyped_storage().nbytes() > leaf.nbytes else leaf
