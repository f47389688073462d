"""States on disk, copy on write, with a cache in host memory.

A client's new state goes to a free row, or over its own row if no kept checkpoint needs that.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import StoreError
from hpcfl.store import rows, segment
from hpcfl.store.base import StateSchema
from hpcfl.store.pool import Pool

NOWHERE = -1  # the address of a client that has no row yet

# What the objects of a cached state cost beside its numbers; measured as resident memory.
STATE_OVERHEAD = 200  # bytes a state: its tuple, its entry in the cache
TENSOR_OVERHEAD = 550  # bytes a tensor: its Python object, its C++ objects, alignment


def footprint(schema: StateSchema) -> int:
    """Bytes of memory that one cached state takes."""
    return schema.bytes + STATE_OVERHEAD + TENSOR_OVERHEAD * len(schema.fields)


class Hdf5Store:
    """The states of one rank's clients in segment files below ``root``; not thread-safe.

    Tensors are kept and returned by reference while they are in the cache.

    Args:
        root: the folder of the segments, which exists.
        rank: this rank's number.
        life: a short name (letters and digits) that no earlier start of the run had.
        clients: the clients this rank owns.
        schema: the shape of a state.
        cache_bytes: memory for states at most, objects included; 0 writes every state at once.
    """

    def __init__(
        self,
        root: Path,
        rank: int,
        life: str,
        clients: Sequence[int],
        schema: StateSchema,
        cache_bytes: int,
    ) -> None:
        self._rank, self._schema = rank, schema
        # 20 bytes a client; a dict would take 150.
        self._clients = np.unique(np.asarray(clients, np.int64))
        self._address = np.full(len(self._clients), NOWHERE, np.int64)
        self._crc = np.zeros(len(self._clients), np.uint32)
        self._pool = Pool(root, rank, life, schema, len(self._clients))
        self._capacity = cache_bytes // footprint(schema)  # states
        self._cache: OrderedDict[int, Any] = OrderedDict()  # the least recently used first
        self._dirty: set[int] = set()

    def read(self, client: int) -> Any | None:
        """The client's latest staged state, or None if it never had one.

        Raises:
            StoreError: its row cannot be read or its checksum is wrong.
        """
        state = self._cache.get(client)
        if state is not None:
            self._cache.move_to_end(client)
            return state
        position = self._position(client)
        address = int(self._address[position])
        if address == NOWHERE:
            return None
        source, row = self._pool.source(address)
        state = rows.verified(source, row, int(self._crc[position]), client, self._schema)
        self._remember(client, state)
        return state

    def stage(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards.

        Raises:
            StoreError: a state had to be written and the disk is full or fails.
        """
        if client not in self._cache:
            self._position(client)
        self._dirty.add(client)
        self._remember(client, state)

    def commit(self, folder: Path) -> None:
        """Make all staged states durable and write ``folder/rows-RANK.npz``.

        Raises:
            StoreError: the disk is full or fails.
        """
        for client in sorted(self._dirty):
            self._write(client)
        self._pool.flush()
        known = np.flatnonzero(self._address != NOWHERE)
        taken = self._address[known]
        self._pool.pin(taken)
        segments, places = self._pool.split(taken)
        crcs = self._crc[known].astype(np.int64)
        names = self._pool.names
        table = rows.Rows(self._clients[known], segments, places, crcs, names)
        rows.write(folder, self._rank, table)

    def keep(self, folders: Iterable[Path]) -> None:
        """These committed checkpoints are kept; rows that only others name may be reused.

        Raises:
            StoreError: a row table is missing or damaged.
        """
        pinned = [np.zeros(0, np.int64)]
        for folder in folders:
            # A checkpoint of fewer ranks than now has no part of this rank.
            if self._rank < rows.ranks(folder):
                part = rows.read(folder, self._rank)
                pinned.append(self._pool.addresses(part.names, part.segments, part.rows))
        every = np.concatenate(pinned)
        taken = self._address[self._address != NOWHERE]
        self._pool.keep(every[every != NOWHERE], taken)

    def adopt(self, table: rows.Table) -> None:
        """Go on with the segments of a checkpoint that the same ranks with the same clients made.

        No old row is reused before ``keep`` says which checkpoints are kept.

        Raises:
            StoreError: a segment is missing, damaged or in use, or the clients are not the same.
        """
        paths = [
            p for p, owner in zip(table.paths, table.owners, strict=True) if owner == self._rank
        ]
        states = np.isin(table.segments, [table.paths.index(path) for path in paths])
        mine = np.isin(table.clients, self._clients)
        if (states != mine).any():
            odd = int(table.clients[states != mine][0])
            raise StoreError(
                f"rank {self._rank}: client {odd} changed its rank since the checkpoint, expected "
                "the same owners; rehome the states"
            )
        self._pool.adopt(paths)
        names = [path.name for path in table.paths]
        positions = np.searchsorted(self._clients, table.clients[mine])
        self._address[positions] = self._pool.addresses(
            names, table.segments[mine], table.rows[mine]
        )
        self._crc[positions] = table.crcs[mine]

    def rehome(self, table: rows.Table) -> None:
        """Copy the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged, or the disk is full.
        """
        mine = table.for_clients(self._clients)
        with rows.Reader(mine, self._schema) as reader:
            for at in np.lexsort((mine.rows, mine.segments)):
                client = int(mine.clients[at])
                self.stage(client, reader.read(client))

    def close(self) -> None:
        """Release the files; what was not committed is lost."""
        self._pool.close()
        self._cache.clear()
        self._dirty.clear()

    def _position(self, client: int) -> int:
        position = int(np.searchsorted(self._clients, client))
        if position == len(self._clients) or self._clients[position] != client:
            raise ValueError(f"client {client} is not one of rank {self._rank}'s")
        return position

    def _remember(self, client: int, state: Any) -> None:
        self._cache[client] = state
        self._cache.move_to_end(client)
        while len(self._cache) > self._capacity:
            oldest = next(iter(self._cache))
            if oldest in self._dirty:
                self._write(oldest)
            del self._cache[oldest]

    def _write(self, client: int) -> None:
        """Write a dirty state from the cache to a row that no kept checkpoint needs."""
        state = self._cache[client]
        position = self._position(client)
        address = int(self._address[position])
        if address == NOWHERE or self._pool.pinned(address):
            address = self._pool.take()
        self._pool.write(address, state)
        self._address[position] = address
        self._crc[position] = segment.checksum(state)
        self._dirty.discard(client)
