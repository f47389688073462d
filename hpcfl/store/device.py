"""The store in a GPU's memory: the states that were saved last, in front of a store on disk.

A state that stays there costs a round no copy to the host or from it, and no call of the store
behind.  It is handed on when it has to make room, and at the latest when a checkpoint begins
(``snapshot``): so the store behind has every state that a checkpoint names, and what a client had
between two checkpoints may never leave the GPU.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hpcfl.store.base import ClientStore
from hpcfl.store.row_table import Table
from hpcfl.store.schema import StateSchema

ALIGNMENT = 512  # bytes to which torch rounds up the memory of a tensor on a GPU


class DeviceStore(ClientStore):
    """Keeps states on the device as they were given, without a copy.

    ``load`` returns such a state on the device, and any other as the store behind has it.

    Args:
        behind: the store on disk, which copies them to the host.
        schema: the shape of a state.
        cache_bytes: memory of the device for states, at most; 0 hands every state on at once.
    """

    def __init__(self, behind: ClientStore, schema: StateSchema, cache_bytes: int) -> None:
        each = sum(-(-max(1, field.bytes) // ALIGNMENT) * ALIGNMENT for field in schema.fields)
        self._behind, self._fields = behind, schema.fields
        self._capacity = cache_bytes // each  # states
        self._states: OrderedDict[int, Any] = OrderedDict()  # by client, the one saved first first
        self._changed: set[int] = set()  # clients whose state was not handed on yet

    def prefetch(self, clients: Sequence[int]) -> None:
        self._behind.prefetch([client for client in clients if client not in self._states])

    def load(self, client: int) -> Any | None:
        state = self._states.get(client)
        return self._behind.load(client) if state is None else state

    def save(self, client: int, state: Any) -> None:
        for field, leaf in zip(self._fields, state, strict=True):
            field.check(leaf)
        self._states[client] = state
        self._states.move_to_end(client)
        self._changed.add(client)
        while len(self._states) > self._capacity:
            oldest = next(iter(self._states))
            self._hand_on(oldest)
            del self._states[oldest]

    def snapshot(self, folder: Path) -> "list[Future[None]]":
        for client in self._states:
            self._hand_on(client)
        return self._behind.snapshot(folder)

    def retain(self, folders: Iterable[Path]) -> None:
        self._behind.retain(folders)

    def require_in_place(self) -> None:
        self._behind.require_in_place()

    def restore(self, table: Table, ranks: int, older: Sequence[Table] = ()) -> None:
        self._behind.restore(table, ranks, older)

    def close(self) -> None:
        self._behind.close()
        self._states.clear()

    def _hand_on(self, client: int) -> None:
        """Give a client's state to the store behind, unless it has it."""
        if client in self._changed:
            self._behind.save(client, self._states[client])
            self._changed.discard(client)
