"""The store in host memory; a snapshot writes all states to one new segment file."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hpcfl.io.live_files import HeldPath
from hpcfl.store import row_table, segment
from hpcfl.store.arena import StateArena
from hpcfl.store.base import ClientStore
from hpcfl.store.reader import Reader
from hpcfl.store.same_tensors import SameTensors
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment


class MemoryStore(ClientStore):
    """The states of one rank's clients in memory; ``load`` returns views of the store's copies.

    Args:
        root: the folder of the segments, which exists.
        rank: this rank's number.
        session_id: a short name (letters and digits) that no earlier start of the run had.
        clients: the clients this rank owns.
        schema: the shape of a state.
    """

    def __init__(
        self, root: Path, rank: int, session_id: str, clients: Sequence[int], schema: StateSchema
    ) -> None:
        self._root, self._rank, self._session_id, self._schema = root, rank, session_id, schema
        self._clients = frozenset(clients)
        self._states: dict[int, Iterable[Tensor]] = {}
        self._arena = StateArena(schema)
        # The tensors that were saved last, and the copy of them.
        self._latest: tuple[SameTensors, Iterable[Tensor]] = SameTensors(()), ()
        self._files: set[str] = set()  # of the snapshots of this start, complete or not
        self._held: dict[str, HeldPath] = {}  # those that are complete
        self._snapshots = 0
        self._executor = ThreadPoolExecutor(1, "store-snapshot")

    def load(self, client: int) -> Any | None:
        state = self._states.get(client)
        if state is None:
            self._check(client)
            return None
        return self._schema.type(*state)

    def save(self, client: int, state: Any) -> None:
        self._check(client)
        latest, copy = self._latest
        if not latest.match(state):
            copy = self._arena.copy_of(state)
            self._latest = SameTensors(state), copy
        self._states[client] = copy

    def snapshot(self, folder: Path) -> "list[Future[None]]":
        # The copies are never changed in place, so a copy of the dict is a snapshot.
        states = dict(sorted(self._states.items()))
        name = segment.file_name(self._session_id, self._rank, self._snapshots)
        if states:
            self._snapshots += 1
            self._files.add(name)
        return [self._executor.submit(self._write_snapshot, folder, name, states)]

    def _write_snapshot(self, folder: Path, name: str, states: dict[int, Iterable[Tensor]]) -> None:
        # Clients that share a copy share a row.
        keys = list(map(id, states.values()))
        distinct = dict(zip(keys, states.values(), strict=True))
        row_of = {key: row for row, key in enumerate(distinct)}
        rows = np.array([row_of[key] for key in keys], np.int64)
        crcs = np.zeros(0, np.int64)
        if states:
            file = Segment.create(self._root / name, self._schema, len(distinct))
            for row, state in enumerate(distinct.values()):
                file.write(row, state)
                file.crcs[row] = segment.checksum(state)
            file.flush()
            file.close()
            self._held[name] = HeldPath.open(self._root / name)
            crcs = file.crcs.astype(np.int64)[rows]
        clients, first = np.array(list(states), np.int64), np.zeros(len(states), np.int64)
        names = (name,) if states else ()
        # The segment is on the disk before the table that names it.
        row_table.write(folder, self._rank, row_table.Rows(clients, first, rows, crcs, names))

    def retain(self, folders: Iterable[Path]) -> None:
        kept = row_table.named(folders)
        for name in sorted(self._files - kept):
            (self._root / name).unlink(missing_ok=True)
            self._held.pop(name).close()
        self._files &= kept

    def require_in_place(self) -> None:
        for held in list(self._held.values()):
            held.check()

    def restore(self, table: row_table.Table, ranks: int, rows: Sequence[int]) -> None:
        with Reader(table.for_clients(sorted(self._clients)), self._schema) as reader:
            for client, state in reader.all():
                self.save(client, state)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)
        while self._held:
            self._held.popitem()[1].close()
        self._states.clear()

    def _check(self, client: int) -> None:
        if client not in self._clients:
            raise ValueError(f"client {client} is not one of rank {self._rank}'s")
