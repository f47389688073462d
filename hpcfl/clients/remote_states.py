"""Send client states to the ranks that train them for their owners, and back.

Used with ``balance: steal``.  The states of a round are sent at the end of the round before, where
the ranks have just synchronised and the owners' stores hold that round's results; only the first
round after a start, or after an empty one, must wait for them at its beginning.  The new states
return to their owners before they are stored, so that stores, evaluations and checkpoints are the
same as without transfers.

The sender and the receiver of each state follow from the seed, its size from the schema.  Only the
owner knows whether a client has a state yet; one that has none starts where it is trained, with the
first state that its owner would have given it.  A field that holds the model which the client
received is not sent: the owner received the same model.
"""

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.assignment import Assignment, Transfer
from hpcfl.clients.client_states import ClientStates
from hpcfl.comm.base import Comm, P2PMessage
from hpcfl.store.schema import Field, StateSchema
from hpcfl.types import Vector


class RemoteClientStates:
    """Loads and saves the states of the clients that a rank trains, whichever rank owns them.

    Stands in for ``ClientStates``.

    Args:
        owned: the states of this rank's own clients.
        stored: the schema of a state in the store, in which it is sent too.
        comm: the group of ranks.
        device: of the model.
    """

    def __init__(
        self, owned: ClientStates, stored: StateSchema, comm: Comm, device: torch.device
    ) -> None:
        self._owned, self._stored, self._comm = owned, stored, comm
        self._device = device
        self._upcoming: Assignment | None = None  # of the next round
        # A round, and the states that other ranks sent for it, by client; None: it has none yet.
        self._received: tuple[int | None, dict[int, Any | None]] = None, {}
        self._elapsed_s = 0.0

    def load(self, assignment: Assignment, upcoming: Assignment) -> list[Any]:
        """Collective: the states of the clients that this rank trains in this round.

        The store starts to read those that this rank owns of ``upcoming``, the next round.

        Raises:
            StoreError: a state cannot be read.
        """
        began = perf_counter()
        if self._received[0] != assignment.round:
            self._send_to_trainers(assignment)
        _, remote = self._received
        owned = self._owned
        states = [
            owned.to_device(client, remote[client] if client in remote else owned.read(client))
            for client in assignment.trained
        ]
        owned.prefetch(upcoming.owned)
        self._upcoming = upcoming
        self._elapsed_s += perf_counter() - began
        return states

    def save(self, assignment: Assignment, states: Sequence[Any], x: Vector) -> None:
        """Collective: store the new states of own clients, and return those of others.

        Args:
            assignment: this rank's.
            states: of the clients that it trained.
            x: the model that all clients received; states that keep it share this tensor.

        Raises:
            DiskError: the disk is full or fails.
        """
        began = perf_counter()
        known = dict(zip(assignment.trained, states, strict=True))
        known |= self._return_to_owners(assignment, known, x)
        self._owned.write(assignment.owned, [known[client] for client in assignment.owned], x)
        if self._upcoming is not None:
            self._send_to_trainers(self._upcoming)
        self._elapsed_s += perf_counter() - began

    def pop_elapsed_s(self) -> float:
        """Seconds that rounds waited for states since the last call."""
        elapsed, self._elapsed_s = self._elapsed_s, 0.0
        return round(elapsed, 9)

    def prefetch(self, clients: Sequence[int]) -> None:
        """Start to read the states of these clients, which this rank owns."""
        self._owned.prefetch(clients)

    def _send_to_trainers(self, assignment: Assignment) -> None:
        """Collective: send own clients' states to the ranks that train them; receive others'."""
        remote: dict[int, Any | None] = {}
        if assignment.transfers:
            states = [self._read_if_owned(transfer) for transfer in assignment.transfers]
            # Every rank must know which clients have a state, or it would wait for messages that
            # nobody sends.  Only the owner has a 1 to give, hence the maximum.
            exist = (
                self._comm.allreduce_max(
                    np.array([state is not None for state in states], np.float64)
                )
                > 0
            )
            sent: list[P2PMessage] = []
            received: list[P2PMessage] = []
            for transfer, state, exists in zip(assignment.transfers, states, exist, strict=True):
                if state is not None:
                    sent += _messages(transfer.trainer, state)
                elif transfer.trainer == self._comm.rank:
                    buffers = _buffers(self._stored.fields, self._device)
                    remote[transfer.client] = self._stored.type(*buffers) if exists else None
                    received += _messages(transfer.owner, buffers if exists else ())
            self._comm.exchange(sent, received)
        self._received = assignment.round, remote

    def _read_if_owned(self, transfer: Transfer) -> Any | None:
        """The state of an own client that has one; None for any other client."""
        return self._owned.read(transfer.client) if transfer.owner == self._comm.rank else None

    def _return_to_owners(
        self, assignment: Assignment, trained: Mapping[int, Any], x: Vector
    ) -> dict[int, Any]:
        """Collective: send others' new states to their owners; receive those of own clients."""
        returned: dict[int, Any] = {}
        sent: list[P2PMessage] = []
        received: list[P2PMessage] = []
        for client, owner, trainer in assignment.transfers:
            if trainer == self._comm.rank:
                sent += _messages(owner, self._fields_to_send(trained[client], x))
            elif owner == self._comm.rank:
                buffers = _buffers(self._stored.own.fields, self._device)
                returned[client] = self._stored.join(buffers, [x] * len(self._stored.shared.fields))
                received += _messages(trainer, buffers)
        if assignment.transfers:
            self._comm.exchange(sent, received)
        return returned

    def _fields_to_send(self, state: Sequence[Tensor], x: Vector) -> list[Tensor]:
        """The fields of a new state that its owner does not have, in the dtypes of the store."""
        own, shared = self._stored.split(state)
        if any(leaf is not x for leaf in shared):
            raise RuntimeError("a state keeps another model than in the dry round")
        return [
            leaf.to(field.dtype) for field, leaf in zip(self._stored.own.fields, own, strict=True)
        ]


def _buffers(fields: Iterable[Field], device: torch.device) -> list[Tensor]:
    return [torch.empty(field.shape, dtype=field.dtype, device=device) for field in fields]


def _messages(rank: int, leaves: Iterable[Tensor]) -> list[P2PMessage]:
    return [P2PMessage(rank, leaf) for leaf in leaves if leaf.numel()]
