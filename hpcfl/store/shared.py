"""The store of states of two parts: the client's own, and a model that many clients share.

Each part has a store of its own.  In the store of the shared parts, the clients of a round have
one row, which is kept until no client and no kept checkpoint needs it.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hpcfl.errors import StoreError
from hpcfl.io.atomic import write_errors
from hpcfl.store.base import ClientStore
from hpcfl.store.row_table import SHARED, Table
from hpcfl.store.schema import StateSchema


class SharedStore(ClientStore):
    """Splits states between two stores and joins them again.

    Args:
        schema: the shape of a whole state.
        own: the store of ``schema.own``, in the segments' folder.
        shared: the store of ``schema.shared``, in its ``folder_of_shared``.
    """

    def __init__(self, schema: StateSchema, own: ClientStore, shared: ClientStore) -> None:
        self._schema, self._own, self._shared = schema, own, shared

    def prefetch(self, clients: Sequence[int]) -> None:
        self._own.prefetch(clients)
        self._shared.prefetch(clients)

    def load(self, client: int) -> Any | None:
        own = self._own.load(client)
        return None if own is None else self._schema.join(own, self._shared.load(client))

    def save(self, client: int, state: Any) -> None:
        own, shared = self._schema.split(state)
        self._own.save(client, own)
        self._shared.save(client, shared)

    def snapshot(self, folder: Path) -> "list[Future[None]]":
        return [*self._own.snapshot(folder), *self._shared.snapshot(folder_of_shared(folder))]

    def retain(self, folders: Iterable[Path]) -> None:
        kept = list(folders)
        self._own.retain(kept)
        self._shared.retain([folder / SHARED for folder in kept])

    def require_in_place(self) -> None:
        self._own.require_in_place()
        self._shared.require_in_place()

    def restore(self, table: Table, ranks: int, older: Sequence[Table] = ()) -> None:
        if table.shared is None:
            raise StoreError(
                f"the checkpoint holds {table.clients.size} client states without the part that "
                "clients share; another algorithm made it: resume with the code that made it"
            )
        self._own.restore(table.own, ranks, [each.own for each in older])
        self._shared.restore(table.shared, ranks, [each.shared for each in older if each.shared])

    def close(self) -> None:
        self._own.close()
        self._shared.close()


def folder_of_shared(folder: Path) -> Path:
    """The folder of the shared parts, in the ``folder`` of the own parts; made if it is missing.

    Raises:
        DiskError: the disk is full or fails.
        StoreError: it cannot be made for another reason.
    """
    with write_errors(folder / SHARED):
        (folder / SHARED).mkdir(exist_ok=True)
    return folder / SHARED
