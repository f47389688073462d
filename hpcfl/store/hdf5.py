"""The store on disk: copy on write, with a cache in host memory.

A new state goes to a free row; or over the client's old row, if no kept checkpoint and no other
client needs that one.  A row is read ahead of the round that needs it.  It is written when the
cache evicts its state, and at the latest when a checkpoint begins (``snapshot``); until its write
is done, a state stays in memory.  Threads of ``hpcfl.store.background_io`` do both.

A row may be replaced while it is being read.  That happens only when its client got a new state,
which ``load`` then takes from memory: what was read is not used.
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
from hpcfl.store.background_io import BackgroundIO
from hpcfl.store.base import ClientStore
from hpcfl.store.footprint import footprint
from hpcfl.store.reader import Reader
from hpcfl.store.row_allocator import RowAllocator
from hpcfl.store.same_tensors import SameTensors
from hpcfl.store.schema import StateSchema
from hpcfl.store.segment import Segment
from hpcfl.types import IntArray

NO_ROW = -1  # the address of a client that has no state yet
# Evicted states that are still being written may fill this many cohorts of memory; then ``save``
# waits for the disk.
EVICTED_COHORTS = 2

Fetch = Callable[[], Iterable[Tensor] | None]


class Hdf5Store(ClientStore):
    """The states of one rank's clients in segment files below ``root``; not thread-safe.

    An address is the number of a row through all segments (``hpcfl.store.row_allocator``).
    ``load`` returns views of the cache's copies.

    Args:
        root: the folder of the segments, which exists.
        rank: this rank's number.
        session_id: a short name (letters and digits) that no earlier start of the run had.
        clients: the clients this rank owns.
        schema: the shape of a state.
        cache_bytes: memory for cached states at most, Python objects included; 0 writes every
            state at once.  States in use, the prefetched cohort and ``EVICTED_COHORTS`` cohorts
            that are being written come on top.
        row_per_round: whether the clients of a round share one row.
        pinned: whether states are cached in pinned memory, for a GPU.
    """

    def __init__(
        self,
        root: Path,
        rank: int,
        session_id: str,
        clients: Sequence[int],
        schema: StateSchema,
        cache_bytes: int,
        *,
        row_per_round: bool = False,
        pinned: bool = False,
    ) -> None:
        self._rank, self._schema, self._row_per_round = rank, schema, row_per_round
        # Two sorted arrays take 16 bytes a client; a dict would take 150.
        self._clients = np.unique(np.asarray(clients, np.int64))
        self._address = np.full(len(self._clients), NO_ROW, np.int64)
        self._rows = RowAllocator(root, rank, session_id, schema, len(self._clients))
        self._io = BackgroundIO()
        self._capacity = cache_bytes // footprint(schema, pinned=pinned)  # states
        # By address, the least recently used first.
        self._cache: OrderedDict[int, Iterable[Tensor]] = OrderedDict()
        self._arena = StateArena(schema, pinned=pinned)
        self._dirty: set[int] = set()  # cached addresses whose write has not begun
        self._writing: dict[int, _Writing] = {}  # by address, the newest
        self._evicted: deque[_Writing] = deque()  # those of them that the cache has dropped
        self._unflushed: set[Segment] = set()
        self._snapshots: dict[Path, IntArray] = {}  # the rows of each kept checkpoint, by folder
        self._cohort = 1  # the most clients that were prefetched at once so far
        self._prefetched: dict[int, Fetch] = {}  # by client
        self._latest = NO_ROW, SameTensors(())  # the state that was saved last, and its address

    def prefetch(self, clients: Sequence[int]) -> None:
        self._cohort = max(self._cohort, len(clients))
        self._prefetched = {}
        fetches: dict[int, Fetch] = {}  # by address: clients that share a row share its read
        for client in clients:
            address = int(self._address[self._position(client)])
            if address not in fetches:
                fetches[address] = self._fetch(address, client)
            self._prefetched[client] = fetches[address]

    def load(self, client: int) -> Any | None:
        self._collect_writes()
        address = int(self._address[self._position(client)])
        tensors = (self._prefetched.get(client) or self._fetch(address, client))()
        if tensors is None:
            return None
        # Clients that share a row were prefetched together: the first one cached their copy.
        self._add_to_cache(address, self._cache.get(address, tensors))
        return self._schema.type(*tensors)

    def save(self, client: int, state: Any) -> None:
        position = self._position(client)
        old, (address, latest) = int(self._address[position]), self._latest
        new = None if latest.match(state) else self._arena.copy_of(state, borrow=not self._capacity)
        if new is not None:
            replaceable = old != NO_ROW and self._rows.replaceable(old)
            address = old if replaceable else self._rows.take()
        if address != old:
            self._rows.hold(address)
            self._address[position] = address
            if old != NO_ROW and self._rows.release(old):
                self._evict(old)
        if new is not None:
            self._latest = address, SameTensors(state)
            self._dirty.add(address)
            self._add_to_cache(address, new)
        if client in self._prefetched:
            self._prefetched[client] = self._fetch(address, client)

    def snapshot(self, folder: Path) -> list["Future[None]"]:
        dirty = [self._begin_write(at, for_snapshot=True) for at in sorted(self._dirty)]
        written = [writing.future for writing in (*self._evicted, *dirty)]
        known = np.flatnonzero(self._address != NO_ROW)
        addresses = self._address[known]
        # From here on ``save`` takes other rows, so the rows of the snapshot keep their content.
        self._rows.pin(addresses)
        self._snapshots[folder.absolute()] = addresses
        index, rows = self._rows.split(addresses)
        segments, names = self._rows.segments, self._rows.names

        def write_table() -> None:
            # Checksums are known only once the rows are written.
            crcs = np.zeros(len(addresses), np.int64)
            for number, segment in enumerate(segments):
                crcs[index == number] = segment.crcs[rows[index == number]]
            table = row_table.Rows(self._clients[known], index, rows, crcs, names)
            row_table.write(folder, self._rank, table)

        # Rows first, then the table that names them: a table is never on the disk without them.
        flushed, self._unflushed = self._unflushed, set()
        return [self._io.flush(written, flushed, write_table)]

    def retain(self, folders: Iterable[Path]) -> None:
        self._writing = {at: one for at, one in self._writing.items() if not one.future.done()}
        kept = [folder.absolute() for folder in folders]
        # A folder that is not known was put there by someone else meanwhile.
        known = [folder for folder in kept if folder in self._snapshots]
        self._snapshots = {folder: self._snapshots[folder] for folder in known}
        self._rows.retain(np.concatenate([np.zeros(0, np.int64), *self._snapshots.values()]))

    def require_in_place(self) -> None:
        for segment in self._rows.segments:
            segment.require_in_place()

    def restore(
        self, table: row_table.Table, ranks: int, older: Sequence[row_table.Table] = ()
    ) -> None:
        if table.ranks == ranks:
            self._reuse_segments(table)
        else:
            with Reader(table.for_clients(self._clients), self._schema) as reader:
                for client, state in reader.all():
                    self.save(client, state)
        for each in (*older, table):
            names = [path.name for path in each.paths]
            addresses = self._rows.addresses(names, each.segments, each.rows)
            # Of segments that other ranks wrote, or that were copied, no row is this rank's.
            self._snapshots[each.folder.absolute()] = addresses[addresses != NO_ROW]

    def _reuse_segments(self, table: row_table.Table) -> None:
        """Continue with the segments that this rank wrote; all their rows stay until ``retain``."""
        paths = [
            p for p, owner in zip(table.paths, table.owners, strict=True) if owner == self._rank
        ]
        written = np.isin(table.segments, [table.paths.index(path) for path in paths])
        owned = np.isin(table.clients, self._clients)
        if (written != owned).any():
            client = int(table.clients[written != owned][0])
            raise StoreError(
                f"rank {self._rank}: client {client} changed its rank since the checkpoint, "
                "expected the same owners on as many ranks; resume with the data and the "
                "partition that the checkpoint was made with"
            )
        self._rows.reuse(paths)
        names = [path.name for path in table.paths]
        positions = np.searchsorted(self._clients, table.clients[owned])
        addresses = self._rows.addresses(names, table.segments[owned], table.rows[owned])
        self._address[positions] = addresses
        self._rows.restore(addresses, table.crcs[owned])

    def pin(self, clients: Sequence[int]) -> "list[PinnedState]":
        """The states of these clients as they are now, which stay so until ``retain``.

        ``hpcfl.store.scratch`` copies them to another store.
        """
        sharing: dict[int, list[int]] = {}  # clients by address
        for client in clients:
            sharing.setdefault(int(self._address[self._position(client)]), []).append(client)
        self._rows.pin(np.array(list(sharing), np.int64))
        return [
            PinnedState(tuple(ids), partial(self._state, at, ids[0], self._in_memory(at)))
            for at, ids in sharing.items()
        ]

    def close(self) -> None:
        self._io.close()
        self._rows.close()
        self._cache.clear()
        self._dirty.clear()

    def _position(self, client: int) -> int:
        """The client's index in the arrays."""
        position = int(np.searchsorted(self._clients, client))
        if position == len(self._clients) or self._clients[position] != client:
            raise ValueError(f"client {client} is not one of rank {self._rank}'s")
        return position

    def _fetch(self, address: int, client: int) -> Fetch:
        """A function that returns the state at an address; its read begins now, if it needs one."""
        if address == NO_ROW:
            return lambda: None
        tensors = self._in_memory(address)
        return self._begin_read(address, client) if tensors is None else lambda: tensors

    def _in_memory(self, address: int) -> Iterable[Tensor] | None:
        """The state at an address, if it is cached or still being written."""
        if address in self._cache:
            return self._cache[address]
        return self._writing[address].state if address in self._writing else None

    def _state(self, address: int, client: int, cached: Iterable[Tensor] | None) -> Any:
        tensors = self._begin_read(address, client)() if cached is None else cached
        return self._schema.type(*tensors)

    def _begin_read(self, address: int, client: int) -> Callable[[], Iterable[Tensor]]:
        """Begin to read a row; the function that is returned waits for it."""
        at, target = self._rows.locate(address), self._arena.allocate()
        return self._io.read(at, client, target).result

    def _add_to_cache(self, address: int, tensors: Iterable[Tensor]) -> None:
        self._cache[address] = tensors
        self._cache.move_to_end(address)
        while len(self._cache) > self._capacity:
            oldest = next(iter(self._cache))
            if oldest in self._dirty:
                self._begin_write(oldest)
            self._evict(oldest)
        self._collect_writes()

    def _evict(self, address: int) -> None:
        """Drop a state from the cache; a write of it that has begun keeps it in memory.

        A dirty state is dropped unwritten only when no client has it any more.
        """
        self._dirty.discard(address)
        if self._cache.pop(address, None) is not None and address in self._writing:
            self._evicted.append(self._writing[address])

    def _begin_write(self, address: int, *, for_snapshot: bool = False) -> "_Writing":
        """Begin to write a dirty state from the cache to its row.

        The row may still wait for the write of an older state, of this client or of the row's last
        one.  Then this write has to come behind it, in the same thread: on another thread it might
        be done first, and the older state would stay.
        """
        older = self._writing.get(address)
        waits = older is not None and not older.future.done()
        write = self._io.write_for_snapshot if for_snapshot and not waits else self._io.write
        at, tensors = self._rows.locate(address), self._cache[address]
        self._writing[address] = _Writing(address, tensors, write(at, tensors))
        self._unflushed.add(at.segment)
        self._dirty.discard(address)
        return self._writing[address]

    def _collect_writes(self) -> None:
        """Drop evicted states whose write is done; wait for the oldest if there are too many.

        Raises:
            StoreError: a write failed.
        """
        most = EVICTED_COHORTS * self._cohort
        while self._evicted and (len(self._evicted) > most or self._evicted[0].future.done()):
            writing = self._evicted.popleft()
            writing.future.result()
            # The row may have got a newer state meanwhile, whose write is another one.
            if self._writing.get(writing.address) is writing:
                del self._writing[writing.address]


class PinnedState(NamedTuple):
    """A state of one or several clients that does not change until ``retain``."""

    clients: tuple[int, ...]
    fetch: Callable[[], Any]
    """Returns the state, from the disk if need be; any thread may call it."""


class _Writing(NamedTuple):
    """A write of a state to its row that has begun."""

    address: int
    state: Iterable[Tensor]
    future: "Future[None]"
