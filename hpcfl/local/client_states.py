"""Move client states between the store and the device."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from hpcfl.cohort.assignment import Assignment
from hpcfl.store.base import ClientStore
from hpcfl.store.schema import StateSchema
from hpcfl.types import Vector


class ClientStates:
    """The states of a rank's clients, as the hooks take them: on the device, in their own dtypes.

    Args:
        store: their home.
        schema: their shape.
        stored: their shape in the store.
        first: gives the state of a client that never had one.
        device: where the model is.
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
        self._stored = [field.dtype for field in stored.fields]
        self._spent = 0.0

    def load(self, assignment: Assignment, coming: Assignment) -> list[Any]:
        """The states of the clients that are trained; the coming ones are fetched meanwhile.

        Raises:
            StoreError: a state cannot be read.
        """
        began = perf_counter()
        states = [self.to_device(client, self.read(client)) for client in assignment.trained]
        self.prefetch(coming.trained)
        self._spent += perf_counter() - began
        return states

    def save(self, assignment: Assignment, states: Sequence[Any], x: Vector) -> None:
        """Take over the new states of the clients that were trained.

        Args:
            assignment: this rank's.
            states: theirs.
            x: the model that all of them received: one tensor for all that keep it.

        Raises:
            DiskError: the disk is full or fails.
        """
        began = perf_counter()
        self.write(assignment.trained, states, x)
        self._spent += perf_counter() - began

    def pop_elapsed_s(self) -> float:
        """Seconds that the round waited for states, since this was last asked."""
        spent, self._spent = self._spent, 0.0
        return round(spent, 9)

    def prefetch(self, clients: Sequence[int]) -> None:
        """These clients' states are read next."""
        self._store.prefetch(clients)

    def read(self, client: int) -> Any | None:
        """The client's state as the store has it, None of one that never had one.

        Raises:
            StoreError: it cannot be read.
        """
        return self._store.load(client)

    def to_device(self, client: int, kept: Any | None) -> Any:
        """A state out of a store as the hooks take it; the client's first one for None."""
        if kept is None:
            return self._first(client)
        pairs = zip(kept, self._dtypes, strict=True)
        # From pinned memory the copy is behind what the device still does, not behind us; other
        # memory may hold another state as soon as nobody looks at this one.
        return type(kept)(
            *(leaf.to(self._device, dtype, non_blocking=leaf.is_pinned()) for leaf, dtype in pairs)
        )

    def write(self, clients: Sequence[int], states: Sequence[Any], x: Vector) -> None:
        """Hand new states to the store; what is ``x`` itself is stored once.

        Raises:
            DiskError: the disk is full or fails.
        """
        common = {dtype: self._home(x, dtype) for dtype in self._common(states, x)}
        homes = [
            type(state)(
                *(
                    common[dtype] if leaf is x else self._home(leaf, dtype)
                    for leaf, dtype in zip(state, self._stored, strict=True)
                )
            )
            for state in states
        ]
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        for client, state in zip(clients, homes, strict=True):
            self._store.save(client, state)

    def _common(self, states: Sequence[Any], x: Vector) -> set[torch.dtype]:
        """The dtypes in which states keep ``x`` itself."""
        pairs = (zip(state, self._stored, strict=True) for state in states)
        return {dtype for fields in pairs for leaf, dtype in fields if leaf is x}

    def _home(self, leaf: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor on the CPU; on its way there, into pinned memory, if it is on a GPU."""
        if leaf.device.type == "cpu":
            return leaf.to(dtype)
        home = torch.empty(leaf.shape, dtype=dtype, pin_memory=True)
        return home.copy_(leaf, non_blocking=True)
