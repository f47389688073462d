"""Compare the exact mean of uploads with a plain all-reduce of floats by the same backend.

Every rank runs all sides alternately, each after a barrier.  The times are those of rank 0, which
waits for the other ranks in every side.
"""

import sys
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

from common import WIDTH, Measurement, Result, main, parser, take_turns
from hpcfl.comm.base import Comm
from hpcfl.comm.connect import connect
from hpcfl.comm.exact import ExactReduction
from hpcfl.comm.failure import group
from hpcfl.comm.fast import FastReduction
from hpcfl.comm.reduction import Reduction
from hpcfl.errors import JobError
from hpcfl.start.device import keep_freed_memory, share_one_heap
from round import built_in_jobs
from timed_rounds import TimedRounds, build_timed_run

SIZES = (800_000, 4_000_000, 25_000_000)
TURNS = 21
CLIENTS = (1, 5)  # whose uploads a rank has
FLOAT = "float all-reduce"
LENET_ROUNDS = 6  # of two clients
LENET_COHORT = 10  # clients of the round of LeNet whose time the mean is compared with


class Upload(NamedTuple):
    """A model and a loss, as FedAvg sends them."""

    x: Tensor
    loss: Tensor


def bench_reduce(sizes: Sequence[int] | None, backend: str, turns: int) -> Result | None:
    """Collective: measure means of vectors; None on all ranks but the first.

    Args:
        sizes: the numbers of parameters of the vectors; ``SIZES`` when None.
        backend: as ``comm.backend`` in a job.
        turns: the number of measured turns, after one as a warm-up.

    Raises:
        JobError: the backend cannot work here, or there is one rank.
    """
    with group(connect(backend, "cpu", 600.0, Path())) as comm:  # type: ignore[arg-type]
        if comm.size == 1:
            raise JobError(
                "reduce: found 1 rank, expected 2 or more: a single rank has no all-reduce; "
                "say mpirun -n 2 python benchmarks/reduce.py"
            )
        share_one_heap()
        keep_freed_memory()
        torch.set_num_threads(1)
        return measure(comm, sizes or SIZES, turns)


def measure(comm: Comm, sizes: Sequence[int], turns: int) -> Result | None:
    """Collective: measure on a group of ranks; None on all but the first."""
    figures = [f for size in sizes for f in _size(comm, size, turns)]
    lenet, client_s = _lenet()
    share = -(-LENET_COHORT // comm.size)
    lenet_figures = _size(comm, lenet, turns, (share,))
    mean = next(f.median for f in lenet_figures if f.side.startswith("exact"))
    ratio = mean / (share * client_s)
    if comm.rank:
        return None
    comparison = (
        f"{comm.size} ranks, {comm.library}. A round of LeNet, {LENET_COHORT} clients of 500: "
        f"{share} on a rank take {share * client_s:.3f} s, their exact mean {1e3 * mean:.2f} ms: "
        f"{ratio:.2%}"
    )
    text = f"{report(figures)}\n\n{fill(comparison, WIDTH)}"
    about = {"ranks": comm.size, "backend": comm.library, "share_of_lenet_round": ratio}
    return Result("reduce", text, [*figures, *lenet_figures], about)


def report(figures: Sequence[Measurement]) -> str:
    """A table: medians, quartiles, and the ratio to the all-reduce of floats."""
    lines = [f"{'parameters':>12}  {'':22} {'median':>10}  {'quartiles':>19} {'to float':>9}"]
    base = figures[0]
    for side in figures:
        base = side if side.side == FLOAT else base
        low, high = (1e3 * value for value in side.quartiles)
        lines.append(
            f"{side.subject:>12}  {side.side:22} {1e3 * side.median:7.2f} ms "
            f"{low:8.2f} to {high:7.2f} {side.over(base):8.2f}x"
        )
    return "\n".join(lines)


def _size(comm: Comm, size: int, turns: int, clients: Sequence[int] = CLIENTS) -> list[Measurement]:
    """Collective: the seconds of every side for vectors of ``size`` parameters."""
    plain = torch.zeros(size)
    sides: dict[str, Callable[[], Any]] = {FLOAT: lambda: comm.allreduce_sum(plain)}
    cpu = torch.device("cpu")
    sides |= mean_functions(comm, size, clients, cpu) | mean_functions(
        comm, size, clients, cpu, FastReduction
    )
    functions = {name: partial(_timed, comm, side) for name, side in sides.items()}
    what = f"reduce: sums of {size} numbers"
    times = take_turns(functions, turns, what, show_progress=comm.rank == 0)
    return [Measurement(str(size), name, "s", seconds) for name, seconds in times.items()]


def _timed(comm: Comm, side: Callable[[], Any]) -> float:
    """Collective: the seconds of ``side``, begun when all ranks are ready."""
    comm.barrier()
    began = perf_counter()
    side()
    return perf_counter() - began


def mean_functions(
    comm: Comm,
    size: int,
    clients: Sequence[int],
    device: torch.device,
    kind: type[Reduction] = ExactReduction,
) -> dict[str, Callable[[], Any]]:
    """Functions, by name, that take a collective mean; one for each of the numbers of clients.

    Args:
        comm: the group of ranks.
        size: parameters of an upload.
        clients: numbers of clients on each rank.
        device: of the uploads.
        kind: the reduction.
    """
    template = Upload(torch.empty(size, device="meta"), torch.empty((), device="meta"))
    reduction = kind(comm, template, frozenset(), torch.float32, device)
    uploads = [
        Upload(_draw(size, comm.rank, k).to(device), torch.ones((), device=device))
        for k in range(max(clients))
    ]
    return {
        f"{kind.__name__.lower()}, {count} client(s)": _mean(comm, reduction, uploads[:count])
        for count in clients
    }


def _mean(comm: Comm, reduction: Reduction, uploads: Sequence[Upload]) -> Callable[[], Any]:
    """A function that takes the mean of these uploads of every rank, as a round does."""
    count = len(uploads)
    ids = [comm.rank * count + k for k in range(count)]
    cohort = comm.size * count
    weights, values = [500.0] * count, np.zeros(1)

    def mean() -> Any:
        own = list(uploads)  # which the mean empties
        return reduction.mean(own, ids, weights, 500.0 * cohort, cohort, values, round=1)

    return mean


def _draw(size: int, rank: int, client: int) -> Tensor:
    """Random numbers, different for every client."""
    draw = torch.Generator().manual_seed(1000 * rank + client)
    return torch.empty(size).uniform_(-1, 1, generator=draw)


def _lenet() -> tuple[int, float]:
    """The number of LeNet's parameters, and the seconds of one client's local training.

    Each rank measures alone, all at the same time, so that they share the processor as in a run.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        engine = TimedRounds(
            build_timed_run(built_in_jobs(Path(name))[1], Path(name), stack).run, 1
        )
        return engine.x.numel(), median(engine() for _ in range(LENET_ROUNDS)) / 2


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself, on all ranks."""
    made = parser("The exact mean against a float all-reduce, on all ranks of mpirun.")
    made.add_argument(
        "--sizes", type=int, nargs="+", help="parameters (default 800000 4000000 25000000)"
    )
    made.add_argument(
        "--backend",
        choices=["auto", "mpi", "gloo"],
        default="auto",
        help="as comm.backend in a job (default: auto)",
    )
    options = made.parse_args(words)
    return main(options, lambda o: bench_reduce(o.sizes, o.backend, TURNS))


if __name__ == "__main__":
    sys.exit(command())
