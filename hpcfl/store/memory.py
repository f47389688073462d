"""States in host memory; a commit writes all of them to one new segment file."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.store import rows, segment
from hpcfl.store.base import StateSchema
from hpcfl.store.segment import Segment


class MemoryStore:
    """The states of one rank's clients, all in memory; tensors are kept by reference.

    Args:
        root: the folder of the segments, which exists.
        rank: this rank's number.
        life: a short name (letters and digits) that no earlier start of the run had.
        clients: the clients this rank owns.
        schema: the shape of a state.
    """

    def __init__(
        self, root: Path, rank: int, life: str, clients: Sequence[int], schema: StateSchema
    ) -> None:
        self._root, self._rank, self._life, self._schema = root, rank, life, schema
        self._clients = frozenset(clients)
        self._states: dict[int, Any] = {}
        self._files: set[str] = set()  # this life's
        self._commits = 0

    def read(self, client: int) -> Any | None:
        """The client's latest staged state, or None if it never had one."""
        state = self._states.get(client)
        if state is None:
            self._check(client)
        return state

    def stage(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards."""
        self._check(client)
        self._states[client] = state

    def commit(self, folder: Path) -> None:
        """Write all states and ``folder/rows-RANK.npz``, durably.

        Raises:
            StoreError: the disk is full or fails.
        """
        clients = sorted(self._states)
        keys = [tuple(map(id, self._states[client])) for client in clients]
        distinct = {key: self._states[i] for key, i in zip(keys, clients, strict=True)}
        crcs = np.array([segment.checksum(state) for state in distinct.values()], np.int64)
        name = segment.name(self._life, self._rank, self._commits)
        names = (name,) if clients else ()
        if clients:
            self._commits += 1
            self._files.add(name)
            file = Segment.create(self._root / name, self._schema, len(distinct))
            for row, state in enumerate(distinct.values()):
                file.write(row, state)
            file.flush()
            file.close()
        at = {key: row for row, key in enumerate(distinct)}
        places = np.array([at[key] for key in keys], np.int64)
        ids, first = np.array(clients, np.int64), np.zeros(len(clients), np.int64)
        table = rows.Rows(ids, first, places, crcs[places], names)
        rows.write(folder, self._rank, table)

    def keep(self, folders: Iterable[Path]) -> None:
        """These committed checkpoints are kept; this life's files of all others are deleted.

        Raises:
            StoreError: a row table is missing or damaged.
        """
        kept = rows.named(folders)
        for name in sorted(self._files - kept):
            (self._root / name).unlink()
        self._files &= kept

    def adopt(self, table: rows.Table) -> None:
        """Read the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged.
        """
        self.rehome(table)

    def rehome(self, table: rows.Table) -> None:
        """Read the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged.
        """
        with rows.Reader(table.for_clients(sorted(self._clients)), self._schema) as reader:
            self._states = dict(reader.all())

    def close(self) -> None:
        """Drop the states; what was not committed is lost."""
        self._states.clear()

    def _check(self, client: int) -> None:
        if client not in self._clients:
            raise ValueError(f"client {client} is not one of rank {self._rank}'s")
