"""Send client states to ranks that train them for their owners, and back.

A round's states are sent along at the end of the round before, when the ranks have just met and
the owners' stores hold what that round left; only the first round after a start, or after an empty
one, must wait for them at its beginning.  The new states come back before they are stored, so
stores, evaluations and checkpoints are the same as without transfers.

Who sends what to whom follows from the seed, how much from the schema.  Only whether a client has
a state yet is its owner's to tell: one that has none begins where it is trained, with the first
state that it would have had at home.  The model that a client keeps as it received it does not
travel: its owner has it too.
"""

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.cohort.assignment import Assignment, Transfer
from hpcfl.comm.base import Comm, P2PMessage
from hpcfl.local.client_states import ClientStates
from hpcfl.store.schema import Field, StateSchema
from hpcfl.types import Vector


class RemoteClientStates:
    """The states that a rank trains with, its own and others', in the place of ``ClientStates``.

    Args:
        memories: of this rank's own clients.
        stored: the shape of a state in the store; a state travels in it.
        comm: the group of ranks.
        device: where the model is.
    """

    def __init__(
        self, memories: ClientStates, stored: StateSchema, comm: Comm, device: torch.device
    ) -> None:
        self._memories, self._stored, self._comm = memories, stored, comm
        self._device = device
        self._coming: Assignment | None = None  # that of the next round
        self._brought: tuple[int, dict[int, Any | None]] = -1, {}  # a round, others' states for it
        self._spent = 0.0

    def load(self, assignment: Assignment, coming: Assignment) -> list[Any]:
        """Collective: the states of the clients that are trained; the coming ones are fetched.

        Raises:
            StoreError: a state cannot be read.
        """
        began = perf_counter()
        if self._brought[0] != assignment.round:
            self._bring(assignment)
        _, others = self._brought
        memories = self._memories
        states = [
            memories.to_device(
                client, others[client] if client in others else memories.read(client)
            )
            for client in assignment.trained
        ]
        memories.prefetch(coming.owned)
        self._coming = coming
        self._spent += perf_counter() - began
        return states

    def save(self, assignment: Assignment, states: Sequence[Any], x: Vector) -> None:
        """Collective: take over the new states of own clients, and send those of others home.

        Args:
            assignment: this rank's.
            states: those of the clients that it trained.
            x: the model that all clients received: one tensor for all that keep it.

        Raises:
            DiskError: the disk is full or fails.
        """
        began = perf_counter()
        known = dict(zip(assignment.trained, states, strict=True))
        known |= self._returned(assignment, known, x)
        self._memories.write(assignment.owned, [known[client] for client in assignment.owned], x)
        if self._coming is not None:
            self._bring(self._coming)
        self._spent += perf_counter() - began

    def pop_elapsed_s(self) -> float:
        """Seconds that the round waited for states, since this was last asked."""
        spent, self._spent = self._spent, 0.0
        return round(spent, 9)

    def _bring(self, assignment: Assignment) -> None:
        """Collective: send own clients' states to who trains them, and have those of others."""
        others: dict[int, Any | None] = {}
        if assignment.transfers:
            kept = [self._own(move) for move in assignment.transfers]
            exist = (
                self._comm.allreduce_max(
                    np.array([state is not None for state in kept], np.float64)
                )
                > 0
            )
            sent: list[P2PMessage] = []
            received: list[P2PMessage] = []
            for move, state, exists in zip(assignment.transfers, kept, exist, strict=True):
                if state is not None:
                    sent += _parcels(move.trainer, state)
                elif move.trainer == self._comm.rank:
                    room = _room(self._stored.fields, self._device)
                    others[move.client] = self._stored.type(*room) if exists else None
                    received += _parcels(move.owner, room if exists else ())
            self._comm.exchange(sent, received)
        self._brought = assignment.round, others

    def _own(self, move: Transfer) -> Any | None:
        """The state of an own client that has one; None of any other."""
        own = move.owner == self._comm.rank
        return self._memories.read(move.client) if own else None

    def _returned(
        self, assignment: Assignment, trained: Mapping[int, Any], x: Vector
    ) -> dict[int, Any]:
        """Collective: send others' new states home, and have own clients' from who trained them."""
        back: dict[int, Any] = {}
        sent: list[P2PMessage] = []
        received: list[P2PMessage] = []
        for client, owner, trainer in assignment.transfers:
            if trainer == self._comm.rank:
                sent += _parcels(owner, self._travelling(trained[client], x))
            elif owner == self._comm.rank:
                room = _room(self._stored.own.fields, torch.device("cpu"))
                back[client] = self._stored.join(room, [x] * len(self._stored.shared.fields))
                received += _parcels(trainer, room)
        if assignment.transfers:
            self._comm.exchange(sent, received)
        return back

    def _travelling(self, state: Sequence[Tensor], x: Vector) -> list[Tensor]:
        """What of a new state its owner does not have."""
        own, shared = self._stored.split(state)
        if any(leaf is not x for leaf in shared):
            raise RuntimeError("a state keeps another model than the dry round said")
        return [
            leaf.to(field.dtype) for field, leaf in zip(self._stored.own.fields, own, strict=True)
        ]


def _room(fields: Iterable[Field], device: torch.device) -> list[Tensor]:
    return [torch.empty(field.shape, dtype=field.dtype, device=device) for field in fields]


def _parcels(rank: int, leaves: Iterable[Tensor]) -> list[P2PMessage]:
    return [P2PMessage(rank, leaf) for leaf in leaves if leaf.numel()]
