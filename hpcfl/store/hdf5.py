"""States on disk, copy on write, with a cache in host memory.

A client's new state goes to a free row, or over its old one if nobody else needs that: no kept
checkpoint, no other client.
"""

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hpcfl.errors import StoreError
from hpcfl.store import rows
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
        # 16 bytes a client; a dict would take 150.
        self._clients = np.unique(np.asarray(clients, np.int64))
        self._address = np.full(len(self._clients), NOWHERE, np.int64)
        self._pool = Pool(root, rank, life, schema, len(self._clients))
        self._capacity = cache_bytes // footprint(schema)  # states
        # By address, the least recently used first.
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._dirty: set[int] = set()
        self._last = NOWHERE, _Marks(())  # where the latest new state went, and which it is

    def read(self, client: int) -> Any | None:
        """The client's latest staged state, or None if it never had one.

        Raises:
            StoreError: its row cannot be read or its checksum is wrong.
        """
        address = int(self._address[self._position(client)])
        if address == NOWHERE:
            return None
        state = self._cache.get(address)
        if state is None:
            source, row, crc = self._pool.source(address)
            state = rows.verified(source, row, crc, client, self._schema)
        self._remember(address, state)
        return state

    def stage(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards.

        Raises:
            StoreError: a state had to be written and the disk is full or fails.
        """
        position = self._position(client)
        old, (address, marks) = int(self._address[position]), self._last
        known = marks.of(state)
        if not known:
            kept = old != NOWHERE and self._pool.changeable(old)
            address = old if kept else self._pool.take()
        if address != old:
            self._pool.hold(address)
            self._address[position] = address
            if old != NOWHERE and self._pool.release(old):
                self._cache.pop(old, None)
                self._dirty.discard(old)
        if not known:
            self._last = address, _Marks(state)
            self._dirty.add(address)
            self._remember(address, state)

    def commit(self, folder: Path) -> None:
        """Make all staged states durable and write ``folder/rows-RANK.npz``.

        Raises:
            StoreError: the disk is full or fails.
        """
        for address in sorted(self._dirty):
            self._write(address)
        self._pool.flush()
        known = np.flatnonzero(self._address != NOWHERE)
        taken = self._address[known]
        self._pool.pin(taken)
        segments, places = self._pool.split(taken)
        crcs, names = self._pool.crcs(taken), self._pool.names
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
        self._pool.keep(every[every != NOWHERE])

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
        addresses = self._pool.addresses(names, table.segments[mine], table.rows[mine])
        self._address[positions] = addresses
        self._pool.restore(addresses, table.crcs[mine])

    def rehome(self, table: rows.Table) -> None:
        """Copy the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged, or the disk is full.
        """
        with rows.Reader(table.for_clients(self._clients), self._schema) as reader:
            for client, state in reader.all():
                self.stage(client, state)

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

    def _remember(self, address: int, state: Any) -> None:
        self._cache[address] = state
        self._cache.move_to_end(address)
        while len(self._cache) > self._capacity:
            oldest = next(iter(self._cache))
            if oldest in self._dirty:
                self._write(oldest)
            del self._cache[oldest]

    def _write(self, address: int) -> None:
        """Write a dirty state from the cache to its row."""
        self._pool.write(address, self._cache[address])
        self._dirty.discard(address)


class _Marks:
    """Recognises a state by its very tensors, without keeping them."""

    def __init__(self, state: Sequence[Tensor]) -> None:
        self._tensors = [weakref.ref(tensor) for tensor in state]

    def of(self, state: Sequence[Tensor]) -> bool:
        """Whether ``state`` is the one."""
        return len(state) == len(self._tensors) and all(
            mark() is tensor for mark, tensor in zip(self._tensors, state, strict=True)
        )
