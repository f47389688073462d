"""The store on disk: copy on write, with a cache in host memory.

A client's new state goes to a free row, or over its old one if nobody else needs that: no kept
checkpoint, no other client.  Rows are read ahead for clients that are expected and written behind
(see ``hpcfl.store.background_io``); a state on its way to the disk is still at hand.

A row may be read while it is replaced: then its client got a new state, which is what counts for
it, and nobody looks at what was read.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from hpcfl.errors import StoreError
from hpcfl.store import row_table
from hpcfl.store.arena import StateArena
from hpcfl.store.background_io import BackgroundIO, Place
from hpcfl.store.disk_usage import ROUNDS
from hpcfl.store.footprint import footprint
from hpcfl.store.reader import Reader
from hpcfl.store.row_allocator import RowAllocator
from hpcfl.store.same_tensors import SameTensors
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment

NOWHERE = -1  # the address of a client that has no row yet
OUTSIDE = 2  # cohorts of states on their way to the disk, at most, besides those in the cache

Fetch = Callable[[], Iterable[Tensor] | None]
Write = Callable[[Place, Iterable[Tensor]], "Future[None]"]


class Hdf5Store:
    """The states of one rank's clients in segment files below ``root``; not thread-safe.

    The cache has copies (see ``hpcfl.store.arena``); what is read from it are views of them.

    Args:
        root: the folder of the segments, which exists.
        rank: this rank's number.
        session: a short name (letters and digits) that no earlier start of the run had.
        clients: the clients this rank owns.
        schema: the shape of a state.
        cache_bytes: memory for states at most, objects included; 0 writes every state at once.
            On top come the states that are looked at, those of an expected cohort, and ``OUTSIDE``
            cohorts on their way to the disk.
        common: the clients of a round have one row together.
    """

    def __init__(
        self,
        root: Path,
        rank: int,
        session: str,
        clients: Sequence[int],
        schema: StateSchema,
        cache_bytes: int,
        *,
        common: bool = False,
    ) -> None:
        self._rank, self._schema, self._common = rank, schema, common
        # 16 bytes a client; a dict would take 150.
        self._clients = np.unique(np.asarray(clients, np.int64))
        self._address = np.full(len(self._clients), NOWHERE, np.int64)
        self._rows = RowAllocator(root, rank, session, schema, len(self._clients))
        self._io = BackgroundIO()
        self._capacity = cache_bytes // footprint(schema)  # states
        # By address, the least recently used first.
        self._cache: OrderedDict[int, Iterable[Tensor]] = OrderedDict()
        self._arena = StateArena(schema)
        self._dirty: set[int] = set()
        self._writing: dict[int, _Writing] = {}  # by address, the newest
        self._outside: deque[_Writing] = deque()  # those of them that no cache holds
        self._unflushed: set[Segment] = set()
        self._cohort = 1  # clients, the most that were expected so far
        self._coming: dict[int, Fetch] = {}  # by client
        self._last = NOWHERE, SameTensors(())  # where the latest new state went, and which it is

    def prefetch(self, clients: Sequence[int]) -> None:
        """These clients are read next: their states are fetched from the disk meanwhile."""
        self._cohort = max(self._cohort, len(clients))
        self._coming = {}
        fetched: dict[int, Fetch] = {}  # by address, which several may share
        for client in clients:
            address = int(self._address[self._position(client)])
            if address not in fetched:
                fetched[address] = self._fetch(address, client)
            self._coming[client] = fetched[address]

    def read(self, client: int) -> Any | None:
        """The state that was written last for the client, or None if it never had one.

        Raises:
            StoreError: its row cannot be read or its checksum is wrong.
        """
        self._reap()
        address = int(self._address[self._position(client)])
        kept = (self._coming.get(client) or self._fetch(address, client))()
        if kept is None:
            return None
        self._remember(address, self._cache.get(address, kept))  # the cache's own copy first
        return self._schema.type(*kept)

    def write(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards.

        Raises:
            DiskError: a state had to be written and the disk is full or fails.
        """
        position = self._position(client)
        old, (address, marks) = int(self._address[position]), self._last
        new = None if marks.of(state) else self._arena.keep(state, briefly=not self._capacity)
        if new is not None:
            changeable = old != NOWHERE and self._rows.changeable(old)
            address = old if changeable else self._rows.take()
        if address != old:
            self._rows.hold(address)
            self._address[position] = address
            if old != NOWHERE and self._rows.release(old):
                self._forget(old)
        if new is not None:
            self._last = address, SameTensors(state)
            self._dirty.add(address)
            self._remember(address, new)
        if client in self._coming:
            self._coming[client] = self._fetch(address, client)

    def commit(self, folder: Path) -> list["Future[None]"]:
        """Begin to make the states of now durable and to write ``folder/rows-RANK.npz``.

        The future raises DiskError if the disk is full or fails.
        """
        dirty = [self._write(at, self._io.write_of_commit) for at in sorted(self._dirty)]
        written = [writing.future for writing in (*self._outside, *dirty)]
        known = np.flatnonzero(self._address != NOWHERE)
        taken = self._address[known]
        self._rows.pin(taken)
        segments, places = self._rows.split(taken)
        parts, names = self._rows.segments, self._rows.names

        def tabulate() -> None:
            crcs = np.zeros(len(taken), np.int64)
            for index, part in enumerate(parts):
                crcs[segments == index] = part.crcs[places[segments == index]]
            table = row_table.Rows(self._clients[known], segments, places, crcs, names)
            row_table.write(folder, self._rank, table)

        flushed, self._unflushed = self._unflushed, set()
        return [self._io.flush(written, flushed, tabulate)]

    @property
    def low_on_rows(self) -> bool:
        """Whether free rows may not last for two more rounds: this one, and one to say so in."""
        return self._rows.free < ROUNDS * (1 if self._common else self._cohort)

    def ensure_rows(self, rows: Sequence[int]) -> None:
        """Have so many rows on the disk, before they are needed.

        Raises:
            DiskError: the disk is too small for them.
        """
        self._rows.ensure_rows(sum(rows))

    def ensure_free_rows(self, rows: Sequence[int]) -> None:
        """Have so many free rows on the disk.

        Raises:
            DiskError: the disk is too small for them.
        """
        self._rows.ensure_free_rows(sum(rows))

    def retain(self, folders: Iterable[Path]) -> None:
        """These committed checkpoints are kept; rows that only others name may be reused.

        Raises:
            StoreError: a row table is missing or damaged.
        """
        self._writing = {at: one for at, one in self._writing.items() if not one.future.done()}
        pinned = [np.zeros(0, np.int64)]
        for folder in folders:
            # A checkpoint of fewer ranks than now has no part of this rank.
            if self._rank < row_table.ranks(folder):
                part = row_table.read(folder, self._rank)
                pinned.append(self._rows.addresses(part.names, part.segments, part.rows))
        every = np.concatenate(pinned)
        self._rows.retain(every[every != NOWHERE])

    def require_in_place(self) -> None:
        """Refuse to commit where a file that a checkpoint needs was deleted or replaced.

        Raises:
            LostFileError: one was.
        """
        for part in self._rows.segments:
            part.require_in_place()

    def restore(self, table: row_table.Table) -> None:
        """Go on with the segments of a checkpoint that the same ranks with the same clients made.

        No old row is reused before ``retain`` says which checkpoints are kept.

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
        self._rows.adopt(paths)
        names = [path.name for path in table.paths]
        positions = np.searchsorted(self._clients, table.clients[mine])
        addresses = self._rows.addresses(names, table.segments[mine], table.rows[mine])
        self._address[positions] = addresses
        self._rows.restore(addresses, table.crcs[mine])

    def restore_from_other_ranks(self, table: row_table.Table) -> None:
        """Copy the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged.
            DiskError: the disk is full or fails.
        """
        with Reader(table.for_clients(self._clients), self._schema) as reader:
            for client, state in reader.all():
                self.write(client, state)

    def snapshot(self, clients: Sequence[int]) -> "list[Snapshot]":
        """The states of these clients as they are now, until ``retain``; for ``ScratchStore``."""
        holders: dict[int, list[int]] = {}
        for client in clients:
            holders.setdefault(int(self._address[self._position(client)]), []).append(client)
        self._rows.pin(np.array(list(holders), np.int64))
        return [
            Snapshot(tuple(own), partial(self._state, at, own[0], self._held(at)))
            for at, own in holders.items()
        ]

    def close(self) -> None:
        """Release the files; what was not committed is lost."""
        self._io.close()
        self._rows.close()
        self._cache.clear()
        self._dirty.clear()

    def _position(self, client: int) -> int:
        position = int(np.searchsorted(self._clients, client))
        if position == len(self._clients) or self._clients[position] != client:
            raise ValueError(f"client {client} is not one of rank {self._rank}'s")
        return position

    def _fetch(self, address: int, client: int) -> Fetch:
        """What gives the state at an address, which is on its way from the disk if need be."""
        if address == NOWHERE:
            return lambda: None
        kept = self._held(address)
        return self._read(address, client) if kept is None else lambda: kept

    def _held(self, address: int) -> Iterable[Tensor] | None:
        """The state at an address, if it is in memory."""
        if address in self._cache:
            return self._cache[address]
        return self._writing[address].state if address in self._writing else None

    def _state(self, address: int, client: int, held: Iterable[Tensor] | None) -> Any:
        return self._schema.type(*(self._read(address, client)() if held is None else held))

    def _read(self, address: int, client: int) -> Callable[[], Iterable[Tensor]]:
        """What gives the state at an address, which is on its way from the disk."""
        place, home = self._rows.locate(address), self._arena.place()
        return self._io.read(place, client, home).result

    def _remember(self, address: int, kept: Iterable[Tensor]) -> None:
        self._cache[address] = kept
        self._cache.move_to_end(address)
        while len(self._cache) > self._capacity:
            oldest = next(iter(self._cache))
            if oldest in self._dirty:
                self._write(oldest, self._io.write)
            self._forget(oldest)
        self._reap()

    def _forget(self, address: int) -> None:
        """Let the cache go of a state; if that is still to be written, memory holds it till then.

        A dirty state that is let go of has no client any more.
        """
        self._dirty.discard(address)
        if self._cache.pop(address, None) is not None and address in self._writing:
            self._outside.append(self._writing[address])

    def _write(self, address: int, write: "Write") -> "_Writing":
        """Begin to write a dirty state from the cache to its row."""
        place, state = self._rows.locate(address), self._cache[address]
        self._writing[address] = _Writing(address, state, write(place, state))
        self._unflushed.add(place.part)
        self._dirty.discard(address)
        return self._writing[address]

    def _reap(self) -> None:
        """Forget states that are written, and wait where there are too many others.

        Raises:
            StoreError: one could not be written.
        """
        most = OUTSIDE * self._cohort
        while self._outside and (len(self._outside) > most or self._outside[0].future.done()):
            writing = self._outside.popleft()
            writing.future.result()
            if self._writing.get(writing.address) is writing:
                del self._writing[writing.address]


class Snapshot(NamedTuple):
    """A state that several clients may have, and that stays as it is."""

    clients: tuple[int, ...]
    fetch: Callable[[], Any]
    """Gives the state, on any thread, from the disk if need be."""


class _Writing(NamedTuple):
    """A state on its way to its row."""

    address: int
    state: Iterable[Tensor]
    future: "Future[None]"
