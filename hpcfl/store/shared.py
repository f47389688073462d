"""The store of states of two parts: the client's own, and a model that many clients share.

Each part has a store of its own.  In that of the shared parts the clients of a round have one row,
which lives as long as one of them, or a kept checkpoint, needs it.
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


class SharedStore:
    """Splits states between two stores and joins them again.

    Args:
        schema: the shape of a whole state.
        own: the store of ``schema.own``, in the segments' folder.
        shared: the store of ``schema.shared``, in its ``folder_of_shared``.
    """

    def __init__(self, schema: StateSchema, own: ClientStore, shared: ClientStore) -> None:
        self._schema, self._own, self._shared = schema, own, shared

    @property
    def low_on_rows(self) -> bool:
        """Whether rows run out soon: the pending checkpoint must be committed, which frees some."""
        return self._own.low_on_rows or self._shared.low_on_rows

    def ensure_rows(self, rows: Sequence[int]) -> None:
        """Have room on the disk for so many own and so many shared parts.

        Raises:
            DiskError: the disk is too small for them.
        """
        own, shared = rows
        self._own.ensure_rows([own])
        self._shared.ensure_rows([shared])

    def ensure_free_rows(self, rows: Sequence[int]) -> None:
        """Have so many free rows on the disk for own and for shared parts.

        Raises:
            DiskError: the disk is too small for them.
        """
        own, shared = rows
        self._own.ensure_free_rows([own])
        self._shared.ensure_free_rows([shared])

    def prefetch(self, clients: Sequence[int]) -> None:
        """These clients are read next: their states are fetched from the disk meanwhile."""
        self._own.prefetch(clients)
        self._shared.prefetch(clients)

    def read(self, client: int) -> Any | None:
        """The state that was written last for the client, or None if it never had one.

        Raises:
            StoreError: one of its rows cannot be read or its checksum is wrong.
        """
        own = self._own.read(client)
        return None if own is None else self._schema.join(own, self._shared.read(client))

    def write(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards.

        Raises:
            DiskError: a part had to be written and the disk is full or fails.
        """
        own, shared = self._schema.split(state)
        self._own.write(client, own)
        self._shared.write(client, shared)

    def commit(self, folder: Path) -> "list[Future[None]]":
        """Begin to make the states of now durable and to write both parts' ``rows-RANK.npz``.

        The futures raise StoreError if the disk is full or fails.
        """
        return [*self._own.commit(folder), *self._shared.commit(folder_of_shared(folder))]

    def retain(self, folders: Iterable[Path]) -> None:
        """These committed checkpoints are kept; rows that only others name may be reused.

        Raises:
            StoreError: a row table is missing or damaged.
        """
        kept = list(folders)
        self._own.retain(kept)
        self._shared.retain([folder / SHARED for folder in kept])

    def require_in_place(self) -> None:
        """Refuse to commit where a file that a checkpoint needs was deleted or replaced.

        Raises:
            LostFileError: one was.
        """
        self._own.require_in_place()
        self._shared.require_in_place()

    def restore(self, table: Table) -> None:
        """Go on with the segments of a checkpoint that the same ranks with the same clients made.

        Raises:
            StoreError: a segment is missing, damaged or in use, or the clients are not the same.
        """
        shared = _shared(table)
        self._own.restore(table.own)
        self._shared.restore(shared)

    def restore_from_other_ranks(self, table: Table) -> None:
        """Copy the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged.
            DiskError: the disk is full or fails.
        """
        shared = _shared(table)
        self._own.restore_from_other_ranks(table.own)
        self._shared.restore_from_other_ranks(shared)

    def close(self) -> None:
        """Release the files; what was not committed is lost."""
        self._own.close()
        self._shared.close()


def folder_of_shared(folder: Path) -> Path:
    """The folder of the shared parts beside the own parts in ``folder``; made if need be.

    Raises:
        StoreError: it cannot be made.
    """
    with write_errors(folder / SHARED):
        (folder / SHARED).mkdir(exist_ok=True)
    return folder / SHARED


def _shared(table: Table) -> Table:
    if table.shared is None:
        raise StoreError(
            f"the checkpoint holds {table.clients.size} client states without the part that "
            "clients share; another algorithm made it: resume with the code that made it"
        )
    return table.shared
