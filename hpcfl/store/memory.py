"""The store in host memory; a commit writes all states to one new segment file."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hpcfl.io.live_files import HeldPath
from hpcfl.store import row_table, segment
from hpcfl.store.arena import StateArena
from hpcfl.store.reader import Reader
from hpcfl.store.same_tensors import SameTensors
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment


class MemoryStore:
    """The states of one rank's clients in memory (see ``hpcfl.store.arena``); views are read.

    Args:
        root: the folder of the segments, which exists.
        rank: this rank's number.
        session: a short name (letters and digits) that no earlier start of the run had.
        clients: the clients this rank owns.
        schema: the shape of a state.
    """

    def __init__(
        self, root: Path, rank: int, session: str, clients: Sequence[int], schema: StateSchema
    ) -> None:
        self._root, self._rank, self._session, self._schema = root, rank, session, schema
        self._clients = frozenset(clients)
        self._states: dict[int, Iterable[Tensor]] = {}
        self._arena = StateArena(schema)
        self._last: tuple[SameTensors, Iterable[Tensor]] = (
            SameTensors(()),
            (),
        )  # the latest new state
        self._files: set[str] = set()  # written since the run was started
        self._held: dict[str, HeldPath] = {}  # those of them that are written
        self._commits = 0
        self._behind = ThreadPoolExecutor(1, "store-commit")

    low_on_rows = False
    """A commit makes a file of its own; nothing waits for another's end."""

    def ensure_rows(self, rows: Sequence[int]) -> None:
        """A commit's file is allocated with it."""

    def ensure_free_rows(self, rows: Sequence[int]) -> None:
        """A commit's file is allocated with it."""

    def prefetch(self, clients: Sequence[int]) -> None:
        """They are at hand."""

    def read(self, client: int) -> Any | None:
        """The state that was written last for the client, or None if it never had one."""
        state = self._states.get(client)
        if state is None:
            self._check(client)
            return None
        return self._schema.type(*state)

    def write(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards."""
        self._check(client)
        marks, kept = self._last
        if not marks.of(state):
            kept = self._arena.keep(state)
            self._last = SameTensors(state), kept
        self._states[client] = kept

    def commit(self, folder: Path) -> "list[Future[None]]":
        """Begin to write the states of now and ``folder/rows-RANK.npz``, durably.

        The future raises DiskError if the disk is full or fails.
        """
        states = dict(sorted(self._states.items()))
        name = segment.name(self._session, self._rank, self._commits)
        if states:
            self._commits += 1
            self._files.add(name)
        return [self._behind.submit(self._commit, folder, name, states)]

    def _commit(self, folder: Path, name: str, states: dict[int, Iterable[Tensor]]) -> None:
        keys = list(map(id, states.values()))
        distinct = dict(zip(keys, states.values(), strict=True))
        at = {key: row for row, key in enumerate(distinct)}
        places = np.array([at[key] for key in keys], np.int64)
        crcs = np.zeros(0, np.int64)
        if states:
            file = Segment.create(self._root / name, self._schema, len(distinct))
            for row, state in enumerate(distinct.values()):
                file.write(row, state)
                file.crcs[row] = segment.checksum(state)
            file.flush()
            file.close()
            self._held[name] = HeldPath.open(self._root / name)
            crcs = file.crcs.astype(np.int64)[places]
        ids, first = np.array(list(states), np.int64), np.zeros(len(states), np.int64)
        names = (name,) if states else ()
        row_table.write(folder, self._rank, row_table.Rows(ids, first, places, crcs, names))

    def retain(self, folders: Iterable[Path]) -> None:
        """Keep these checkpoints; delete the files of others that this store wrote.

        Raises:
            StoreError: a row table is missing or damaged.
        """
        kept = row_table.named(folders)
        for name in sorted(self._files - kept):
            (self._root / name).unlink(missing_ok=True)
            self._held.pop(name).close()
        self._files &= kept

    def require_in_place(self) -> None:
        """Refuse to commit where a file that a checkpoint needs was deleted or replaced.

        Raises:
            LostFileError: one was.
        """
        for held in list(self._held.values()):
            held.check()

    def restore(self, table: row_table.Table) -> None:
        """Read the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged.
        """
        self.restore_from_other_ranks(table)

    def restore_from_other_ranks(self, table: row_table.Table) -> None:
        """Read the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged.
        """
        with Reader(table.for_clients(sorted(self._clients)), self._schema) as reader:
            for client, state in reader.all():
                self.write(client, state)

    def close(self) -> None:
        """Drop the states; what was not committed is lost."""
        self._behind.shutdown(cancel_futures=True)
        while self._held:
            self._held.popitem()[1].close()
        self._states.clear()

    def _check(self, client: int) -> None:
        if client not in self._clients:
            raise ValueError(f"client {client} is not one of rank {self._rank}'s")
