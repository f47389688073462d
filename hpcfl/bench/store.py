"""Compare the store of client states with the bare disk, and rounds with and without it.

The disk: the same rows are written, fsynced and read by the store and by bare calls on a file
that was allocated before; neither reads what memory still holds of a file.  The round: FedHBM, a
state for every client, against FedAvg, none.  All sides take turns in one process.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.bench.interleave import take_turns
from hpcfl.bench.result import Figure, Result
from hpcfl.bench.round import LENET, images
from hpcfl.bench.single_rank import Engine, single_rank
from hpcfl.job.schema import load
from hpcfl.store.disk_usage import ROUNDS_BEFORE_COMMIT
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.schema import Field, StateSchema

TURNS = 9
COHORT = 10  # states that are read ahead at a time
STATE_BYTES = 1 << 22
SIDES = {  # of a round
    "fedavg": (),
    "fedhbm, cache_gib 0": ("algorithm={name: fedhbm}", "store.cache_gib=0.0"),
    "fedhbm, cache_gib 1": ("algorithm={name: fedhbm}", "store.cache_gib=1.0"),
}
TURN = 2  # rounds


class State(NamedTuple):
    """One vector."""

    z: Tensor


class Speed(NamedTuple):
    """Seconds of the store and of bare calls for the same bytes, turn by turn."""

    name: str
    bytes: int
    store_s: list[float]
    bare_s: list[float]

    def __str__(self) -> str:
        store, bare = (self.bytes / median(s) / 1e6 for s in (self.store_s, self.bare_s))
        share = median(b / s for b, s in zip(self.bare_s, self.store_s, strict=True))
        return f"{self.name:10} {store:8.0f} MB/s {bare:8.0f} MB/s {share:9.0%}"


def bench_store(folder: Path | None, gib: float) -> Result:
    """Measure the disk under ``folder`` with ``gib`` GiB of states, and rounds of LeNet there."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        speeds = _speeds(root, max(COHORT, int(gib * 2**30) // STATE_BYTES))
        rounds, waited = _rounds(root)
        lines = [
            f"{'disk':10} {'store':>13} {'bare calls':>13} {'store/bare':>10}",
            *map(str, speeds),
            "",
            f"{'a round of LeNet':21} {'time':>10} {'of fedavg':>10} {'waits for states':>17}",
            *_told(rounds, waited),
        ]
    disk = [
        Figure(f"{speed.name} {speed.bytes / 1e6:.0f} MB", side, "s", seconds)
        for speed in speeds
        for side, seconds in (("store", speed.store_s), ("bare calls", speed.bare_s))
    ]
    about = {"gib": gib, "waits": dict(zip(SIDES, waited, strict=True))}
    return Result("bench store", "\n".join(lines), [*disk, *rounds], about)


def _speeds(root: Path, clients: int) -> list[Speed]:
    """Write and read every client's state, by the store and by bare calls in turn."""
    states = [State(torch.rand(STATE_BYTES // 4)) for _ in range(COHORT)]
    with (
        closing(_ByStore(root, states, clients)) as store,
        closing(_ByCalls(root, states, clients)) as calls,
    ):
        plays = {
            "store writes": partial(_timed, root, store.write),
            "calls write": partial(_timed, root, calls.write),
            "store reads": partial(_timed, root, store.read),
            "calls read": partial(_timed, root, calls.read),
        }
        times = take_turns(plays, TURNS, "bench store: passes over the states", warm=0)
    size = clients * STATE_BYTES
    return [
        Speed("write", size, times["store writes"], times["calls write"]),
        Speed("read", size, times["store reads"], times["calls read"]),
    ]


def _timed(root: Path, play: Callable[[], None]) -> float:
    """Seconds of it, with the disk's files out of memory."""
    _forget(root)
    began = perf_counter()
    play()
    return perf_counter() - began


class _ByStore:
    """All clients' states through the store, a cohort at a time."""

    def __init__(self, root: Path, states: Sequence[State], clients: int) -> None:
        self._folder, self._states = root / "checkpoint", states
        self._cohorts = [range(clients)[k : k + COHORT] for k in range(0, clients, COHORT)]
        (root / "stores").mkdir()
        self._folder.mkdir()
        schema = StateSchema(State, (Field("z", (STATE_BYTES // 4,), torch.float32),))
        self._store = Hdf5Store(root / "stores", 0, "bench", range(clients), schema, 0)
        self._store.ensure_rows([clients + ROUNDS_BEFORE_COMMIT * COHORT])
        self._store.prefetch(self._cohorts[0])  # as many as a round has
        self.close = self._store.close

    def write(self) -> None:
        """Save all states, and take a snapshot."""
        for cohort in self._cohorts:
            for client in cohort:
                self._store.save(client, self._states[client % COHORT])
        for part in self._store.snapshot(self._folder):
            part.result()
        self._store.retain([])

    def read(self) -> None:
        """Read all, as rounds do."""
        for cohort, coming in zip(self._cohorts, [*self._cohorts[1:], range(0)], strict=True):
            for client in cohort:
                self._store.load(client)
            self._store.prefetch(coming)


class _ByCalls:
    """The same bytes by bare calls on an allocated file."""

    def __init__(self, root: Path, states: Sequence[State], clients: int) -> None:
        self._states, self._clients = states, clients
        self._file = (root / "bare").open("w+b", buffering=0)
        os.posix_fallocate(self._file.fileno(), 0, clients * STATE_BYTES)
        self.close = self._file.close

    def write(self) -> None:
        """Write all, and fsync."""
        for client in range(self._clients):
            content = self._states[client % COHORT].z.numpy().data.cast("B")
            os.pwrite(self._file.fileno(), content, client * STATE_BYTES)
        os.fsync(self._file.fileno())

    def read(self) -> None:
        """Read all into new memory."""
        for client in range(self._clients):
            content = torch.empty(STATE_BYTES, dtype=torch.uint8).numpy().data
            os.preadv(self._file.fileno(), [content], client * STATE_BYTES)


def _forget(root: Path) -> None:
    """Drop the files from the page cache, so that the disk is measured, not memory."""
    for path in (*root.glob("stores/*"), root / "bare"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _rounds(root: Path) -> tuple[list[Figure], list[float]]:
    """A turn's seconds of each side of ``SIDES``, and the share in which it waited for states."""
    images(root)
    path = root / "lenet.yaml"
    path.write_text(LENET.replace("ROOT", str(root)).replace("rounds: 13", "rounds: 1000"))
    with ExitStack() as stack:
        sides = [
            single_rank(load(path, changes), _made(root / f"side{k}"), stack)
            for k, changes in enumerate(SIDES.values())
        ]
        engines = [Engine(side.run, TURN) for side in sides]
        for engine, side in zip(engines, sides, strict=True):
            engine()  # warm up
            side.hooks.waited = 0.0
        plays = dict(zip(SIDES, engines, strict=True))
        times = take_turns(plays, TURNS, "bench store: rounds of LeNet", warm=0)
    found = [Figure("a round of LeNet", side, "s", seconds) for side, seconds in times.items()]
    waited = [side.hooks.waited / sum(f.values) for side, f in zip(sides, found, strict=True)]
    return found, waited


def _told(rounds: Sequence[Figure], waited: Sequence[float]) -> list[str]:
    """A line for each side."""
    return [
        f"{found.side:21} {found.middle:8.3f} s {found.over(rounds[0]):10.3f} {share:17.1%}"
        for found, share in zip(rounds, waited, strict=True)
    ]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
