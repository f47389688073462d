"""Compare the exact mean of uploads with a plain all-reduce of floats by the same backend.

On every rank; all sides take turns in one process, each turn after a barrier.  A side's time is
that of rank 0, which waits for the others in each of them.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from textwrap import fill
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.bench.interleave import take_turns
from hpcfl.bench.result import WIDTH, Figure, Result
from hpcfl.bench.round import built_in
from hpcfl.bench.single_rank import Engine, single_rank
from hpcfl.comm.base import Comm
from hpcfl.comm.connect import connect
from hpcfl.comm.exact import Exact
from hpcfl.comm.failure import group
from hpcfl.comm.fast import Fast
from hpcfl.comm.reduction import Reduction
from hpcfl.errors import JobError
from hpcfl.runner.configure_torch import keep_freed_memory

SIZES = (800_000, 4_000_000, 25_000_000)
TURNS = 21
CLIENTS = (1, 5)  # of a rank
FLOAT = "float all-reduce"
VISITS = 6  # rounds of two
ROUND = 10  # clients of the round of LeNet that the mean is set against


class Upload(NamedTuple):
    """A model and a loss, as FedAvg sends them."""

    x: Tensor
    loss: Tensor


def bench_reduce(sizes: Sequence[int] | None, backend: str, turns: int = TURNS) -> Result | None:
    """Collective: measure vectors of so many parameters; None on other ranks than the first.

    Args:
        sizes: parameters; ``SIZES`` when None.
        backend: as comm.backend in a job.
        turns: of every side, after a warm-up.

    Raises:
        JobError: the backend cannot work here, or there is one rank.
    """
    with group(connect(backend, "cpu", 600.0)) as comm:  # type: ignore[arg-type]
        if comm.size == 1:
            raise JobError(
                "bench reduce: found 1 rank, expected 2 or more: one has nobody to share a mean "
                "with; say mpirun -n 2 hpcfl bench reduce"
            )
        keep_freed_memory()
        torch.set_num_threads(1)
        return measure(comm, sizes or SIZES, turns)


def measure(comm: Comm, sizes: Sequence[int], turns: int) -> Result | None:
    """Collective: measure a group of ranks; None on others than the first."""
    figures = [f for size in sizes for f in _size(comm, size, turns)]
    lenet, visit = _lenet()
    share = -(-ROUND // comm.size)
    own = _size(comm, lenet, turns, (share,))
    mean = next(f.middle for f in own if f.side.startswith("exact"))
    part = mean / (share * visit)
    if comm.rank:
        return None
    told = (
        f"{comm.size} ranks, {comm.library}. A round of LeNet, {ROUND} clients of 500: {share} on "
        f"a rank take {share * visit:.3f} s, their exact mean {1e3 * mean:.2f} ms: {part:.2%}"
    )
    text = f"{report(figures)}\n\n{fill(told, WIDTH)}"
    about = {"ranks": comm.size, "backend": comm.library, "share_of_lenet_round": part}
    return Result("bench reduce", text, [*figures, *own], about)


def report(figures: Sequence[Figure]) -> str:
    """A table: medians, quartiles, and the ratio to the all-reduce of floats."""
    lines = [f"{'parameters':>12}  {'':22} {'median':>10}  {'quartiles':>19} {'to float':>9}"]
    base = figures[0]
    for found in figures:
        base = found if found.side == FLOAT else base
        low, high = (1e3 * value for value in found.quartiles)
        lines.append(
            f"{found.subject:>12}  {found.side:22} {1e3 * found.middle:7.2f} ms "
            f"{low:8.2f} to {high:7.2f} {found.over(base):8.2f}x"
        )
    return "\n".join(lines)


def _size(comm: Comm, size: int, turns: int, clients: Sequence[int] = CLIENTS) -> list[Figure]:
    """Every side's seconds for vectors of so many parameters."""
    plain = torch.zeros(size)
    sides: dict[str, Callable[[], Any]] = {FLOAT: lambda: comm.allreduce_sum(plain)}
    cpu = torch.device("cpu")
    sides |= means(comm, size, clients, cpu) | means(comm, size, clients, cpu, Fast)
    plays = {name: partial(_timed, comm, side) for name, side in sides.items()}
    what = f"bench reduce: sums of {size} numbers"
    times = take_turns(plays, turns, what, show_progress=comm.rank == 0)
    return [Figure(str(size), name, "s", seconds) for name, seconds in times.items()]


def _timed(comm: Comm, side: Callable[[], Any]) -> float:
    """Collective: the seconds that it takes once all are there."""
    comm.barrier()
    began = perf_counter()
    side()
    return perf_counter() - began


def means(
    comm: Comm,
    size: int,
    clients: Sequence[int],
    device: torch.device,
    kind: type[Reduction] = Exact,
) -> dict[str, Callable[[], Any]]:
    """By name, collective means of so many numbers from so many clients of every rank."""
    template = Upload(torch.empty(size, device="meta"), torch.empty((), device="meta"))
    made = kind(comm, template, frozenset(), torch.float32, device)
    uploads = [
        Upload(_draw(size, comm.rank, k).to(device), torch.ones((), device=device))
        for k in range(max(clients))
    ]
    return {
        f"{kind.__name__.lower()}, {count} client(s)": _mean(comm, made, uploads[:count])
        for count in clients
    }


def _mean(comm: Comm, reduction: Reduction, uploads: Sequence[Upload]) -> Callable[[], Any]:
    """The mean of these uploads of every rank, as a round takes it."""
    count = len(uploads)
    ids = [comm.rank * count + k for k in range(count)]
    cohort = comm.size * count
    weights, values = [500.0] * count, np.zeros(1)
    return lambda: reduction.mean(uploads, ids, weights, 500.0 * cohort, cohort, values, round=1)


def _draw(size: int, rank: int, client: int) -> Tensor:
    """Numbers of a client, other ones for each."""
    draw = torch.Generator().manual_seed(1000 * rank + client)
    return torch.empty(size).uniform_(-1, 1, generator=draw)


def _lenet() -> tuple[int, float]:
    """LeNet's parameters, and a client's visit in seconds: two ranks at once, without sums."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        engine = Engine(single_rank(built_in(Path(name))[1], Path(name), stack).run, 1)
        return engine.x.numel(), median(engine() for _ in range(VISITS)) / 2
