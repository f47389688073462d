"""Compare the store of client states with the bare disk, and rounds with and without it.

Disk: the store, and bare system calls on a file that was allocated before, write, fsync and read
the same rows; the page cache is dropped before each pass.  Rounds: FedHBM, with a state for every
client, against FedAvg, without states.  All sides run alternately in one process.
"""

import os
import sys
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

from common import Measurement, Result, main, parser, take_turns
from hpcfl.job.load import load
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.schema import Field, StateSchema
from round import LENET, write_images
from timed_rounds import TimedRounds, build_timed_run

TURNS = 9
COHORT = 10  # states that are prefetched at a time
STATE_BYTES = 1 << 22
SIDES = {  # of the rounds: name, and changes of the job
    "fedavg": (),
    "fedhbm, cache_gib 0": ("algorithm={name: fedhbm}", "store.cache_gib=0.0"),
    "fedhbm, cache_gib 1": ("algorithm={name: fedhbm}", "store.cache_gib=1.0"),
}
ROUNDS_OF_TURN = 2


class State(NamedTuple):
    """A client's state: one vector."""

    z: Tensor


class Speed(NamedTuple):
    """Seconds of the store and of bare calls for the same bytes, one value for each turn."""

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
            *_round_lines(rounds, waited),
        ]
    disk = [
        Measurement(f"{speed.name} {speed.bytes / 1e6:.0f} MB", side, "s", seconds)
        for speed in speeds
        for side, seconds in (("store", speed.store_s), ("bare calls", speed.bare_s))
    ]
    about = {"gib": gib, "waits": dict(zip(SIDES, waited, strict=True))}
    return Result("store", "\n".join(lines), [*disk, *rounds], about)


def _speeds(root: Path, clients: int) -> list[Speed]:
    """Write and read every client's state, by the store and by bare calls in turn."""
    states = [State(torch.rand(STATE_BYTES // 4)) for _ in range(COHORT)]
    with (
        closing(_ByStore(root, states, clients)) as store,
        closing(_ByCalls(root, states, clients)) as calls,
    ):
        functions = {
            "store writes": partial(_timed, root, store.write),
            "calls write": partial(_timed, root, calls.write),
            "store reads": partial(_timed, root, store.read),
            "calls read": partial(_timed, root, calls.read),
        }
        times = take_turns(functions, TURNS, "store: passes over the states", warmup=0)
    size = clients * STATE_BYTES
    return [
        Speed("write", size, times["store writes"], times["calls write"]),
        Speed("read", size, times["store reads"], times["calls read"]),
    ]


def _timed(root: Path, work: Callable[[], None]) -> float:
    """The seconds of ``work``, which finds none of its files in the page cache."""
    _drop_page_cache(root)
    began = perf_counter()
    work()
    return perf_counter() - began


class _ByStore:
    """Writes and reads all clients' states through the store, a cohort at a time."""

    def __init__(self, root: Path, states: Sequence[State], clients: int) -> None:
        self._folder, self._states = root / "checkpoint", states
        self._cohorts = [range(clients)[k : k + COHORT] for k in range(0, clients, COHORT)]
        (root / "stores").mkdir()
        self._folder.mkdir()
        schema = StateSchema(State, (Field("z", (STATE_BYTES // 4,), torch.float32),))
        self._store = Hdf5Store(root / "stores", 0, "bench", range(clients), schema, 0)
        # The largest prefetch limits how many evicted states the store holds in memory.
        self._store.prefetch(self._cohorts[0])
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
        """Load all states, each cohort before the next one is prefetched, as rounds do."""
        for cohort, upcoming in zip(self._cohorts, [*self._cohorts[1:], range(0)], strict=True):
            for client in cohort:
                self._store.load(client)
            self._store.prefetch(upcoming)


class _ByCalls:
    """Writes and reads the same bytes by bare calls on an allocated file."""

    def __init__(self, root: Path, states: Sequence[State], clients: int) -> None:
        self._states, self._clients = states, clients
        self._file = (root / "bare").open("w+b", buffering=0)
        os.posix_fallocate(self._file.fileno(), 0, clients * STATE_BYTES)
        self.close = self._file.close

    def write(self) -> None:
        """Write all states, and fsync."""
        for client in range(self._clients):
            content = self._states[client % COHORT].z.numpy().data.cast("B")
            os.pwrite(self._file.fileno(), content, client * STATE_BYTES)
        os.fsync(self._file.fileno())

    def read(self) -> None:
        """Read all states into new memory."""
        for client in range(self._clients):
            content = torch.empty(STATE_BYTES, dtype=torch.uint8).numpy().data
            os.preadv(self._file.fileno(), [content], client * STATE_BYTES)


def _drop_page_cache(root: Path) -> None:
    """Drop the files from the page cache, so that the disk is measured and not memory."""
    for path in (*root.glob("stores/*"), root / "bare"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _rounds(root: Path) -> tuple[list[Measurement], list[float]]:
    """For each of ``SIDES``: the seconds of its turns, and the share of waiting for states."""
    write_images(root)
    path = root / "lenet.yaml"
    path.write_text(LENET.replace("ROOT", str(root)).replace("rounds: 13", "rounds: 1000"))
    with ExitStack() as stack:
        sides = [
            build_timed_run(load(path, changes), _new_folder(root / f"side{k}"), stack)
            for k, changes in enumerate(SIDES.values())
        ]
        engines = [TimedRounds(side.run, ROUNDS_OF_TURN) for side in sides]
        for engine, side in zip(engines, sides, strict=True):
            engine()  # warm up
            side.hooks.waited = 0.0
        functions = dict(zip(SIDES, engines, strict=True))
        times = take_turns(functions, TURNS, "store: rounds of LeNet", warmup=0)
    rounds = [Measurement("a round of LeNet", name, "s", values) for name, values in times.items()]
    waited = [side.hooks.waited / sum(r.values) for side, r in zip(sides, rounds, strict=True)]
    return rounds, waited


def _round_lines(rounds: Sequence[Measurement], waited: Sequence[float]) -> list[str]:
    """A line of the table for each side."""
    return [
        f"{side.side:21} {side.median:8.3f} s {side.over(rounds[0]):10.3f} {share:17.1%}"
        for side, share in zip(rounds, waited, strict=True)
    ]


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself."""
    made = parser("Client states against the bare disk, and in a round.")
    made.add_argument("--dir", type=Path, help="folder to write in (default: the temporary one)")
    made.add_argument("--gib", type=float, default=1.0, help="GiB of states (default: 1)")
    return main(made.parse_args(words), lambda o: bench_store(o.dir, o.gib))


if __name__ == "__main__":
    sys.exit(command())
