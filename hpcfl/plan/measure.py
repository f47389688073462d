"""Measure what a round of a job is made of: a few rounds on the ranks that are there.

All ranks measure at the same time, as they share the machine in a run: rounds of the job on each
rank alone, the exact mean of vectors of the job's size, and all-reduces over the ranks.  The costs
are those of the slowest rank.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.comm.base import Comm
from hpcfl.comm.exact import ExactReduction
from hpcfl.comm.failure import raise_collectively
from hpcfl.comm.reduction import Reduction
from hpcfl.comm.solo import Solo
from hpcfl.data.base import Dataset
from hpcfl.errors import JobError
from hpcfl.evaluation.measure import Meter
from hpcfl.io.progress import track
from hpcfl.job.schema import LoadedJob
from hpcfl.plan.time import CostModel, work
from hpcfl.plan.timed_rounds import TimedRounds, TimedRun, build_timed_run
from hpcfl.runs.log import LogReader
from hpcfl.setup.device import device_of, gpu_rank
from hpcfl.setup.environment import versions

ROUNDS, SECONDS = 5, 5.0  # rounds are run until both are reached
TURNS = 9  # of a call, whose median is taken: a neighbour on the machine slows some of them down
COUNT = 3  # uploads of the larger of two means, whose difference is the cost of an upload
BATCHES = 4  # measured batches of the test set, at most


class Upload(NamedTuple):
    """A model and a loss, as FedAvg sends them."""

    x: Tensor
    loss: Tensor


def measure_costs(loaded: LoadedJob, comm: Comm, dataset: Dataset | None = None) -> CostModel:
    """Collective: measure the costs of a job on these ranks.

    Args:
        loaded: the job.
        comm: the ranks.
        dataset: the job's data, if they are loaded.

    Raises:
        JobError, DataError: something in the job does not fit, or it has less than two rounds.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        number = gpu_rank(loaded.job, comm)
        with raise_collectively(comm):
            device = device_of(loaded.job, number)
            timed = build_timed_run(loaded, Path(name), stack, device=device, dataset=dataset)
            size = work(timed.components).parameters
        comm.barrier()
        with raise_collectively(comm):
            means = mean_functions(Solo(), size, (1, COUNT), device).values()
            alone = [
                *_rounds(timed, Path(name), show_progress=comm.rank == 0),
                _test(timed),
                *(_timed(mean) for mean in means),
            ]
        seconds = [*alone, *_exchange(comm, size, device)]
    slowest = comm.allreduce_max(np.array(seconds)).tolist()
    machine = versions(device)
    what = f"{loaded.name}, {machine.get('gpu') or machine['processor']}"
    kind: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    return _cost_model(slowest, comm.size, size, what, kind)


def _rounds(timed: TimedRun, folder: Path, *, show_progress: bool) -> list[float]:
    """The seconds of a step, of a client besides its steps, of a round besides its clients."""
    asked, run = work(timed.components), timed.run
    rounds = _timed_rounds(TimedRounds(run, 1), run.schedule.rounds)
    for _ in track(rounds, "plan --measure: rounds", thread=False) if show_progress else rounds:
        pass
    lines = LogReader(folder / "log.jsonl").read()
    records = [r for r in lines if r.get("clients")][1:]
    if not records:
        raise JobError(
            f"rounds: found {run.schedule.rounds}, expected 2 at least that have a client: the "
            f"first warms up; set rounds={ROUNDS + 1}, and larger cohorts where most are empty"
        )
    if run.choice is None:
        done = [int(asked.in_round(r["round"] - 1)[1].sum()) for r in records]
    else:  # who was chosen is not known here, but how many steps they took
        mean = asked.steps.sum() / timed.components.clients.steps_per_round.sum()
        done = [r["steps"] * mean for r in records]
    beyond = ("sample_s", "read_s", "write_s")
    return [
        median(r["compute_s"] / n for r, n in zip(records, done, strict=True)),
        median(sum(r[k] for k in beyond) / r["clients"] for r in records),
        median(r["update_s"] for r in records),
    ]


def _timed_rounds(engine: TimedRounds, rounds: int) -> Iterator[float]:
    """Run rounds until they are enough; yield the seconds of each but the first, a warm-up."""
    engine()
    done, total_s = 1, 0.0
    while done < rounds and (done <= ROUNDS or total_s < SECONDS):
        seconds = engine()
        done += 1
        total_s += seconds
        yield seconds


def _test(timed: TimedRun) -> float:
    """The seconds of one example of the test set, reading and transform included, as in a run."""
    components = timed.components
    batches = components.tests().batches(0, 1)
    meter = Meter(components.gradient(), components.dataset.loss, components.dataset.classes)
    times = []
    for _ in range(BATCHES + 1):
        began = perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        meter.each(components.x0, [batch])
        times.append((perf_counter() - began) / len(batch.labels))
    return median(times[1:] or times or [0.0])


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
    return lambda: reduction.mean(uploads, ids, weights, 500.0 * cohort, cohort, values, round=1)


def _draw(size: int, rank: int, client: int) -> Tensor:
    """Random numbers, different for every client."""
    draw = torch.Generator().manual_seed(1000 * rank + client)
    return torch.empty(size).uniform_(-1, 1, generator=draw)


def _exchange(comm: Comm, size: int, device: torch.device) -> list[float]:
    """Collective: the seconds of the two all-reduces of a round."""
    few, many = np.zeros(8), torch.zeros(size, dtype=torch.int64, device=device)
    return [
        _timed(lambda: comm.allreduce_max(few), comm),
        _timed(lambda: comm.allreduce_sum(many), comm),
    ]


def _timed(function: Callable[[], Any], comm: Comm | None = None) -> float:
    """The median seconds of a call, after one that warms up."""
    times = []
    for _ in range(TURNS + 1):
        if comm:  # else the time of a rank includes the wait for a late one
            comm.barrier()
        began = perf_counter()
        function()
        times.append(perf_counter() - began)
    return median(times[1:])


def _cost_model(
    slowest: Sequence[float], ranks: int, size: int, what: str, device: Literal["cpu", "cuda"]
) -> CostModel:
    """Compute the costs from the medians, which are in the order of ``measure_costs``.

    Latency and bandwidth follow from the formula of an all-reduce in ``hpcfl.plan.time``.
    """
    step, visit, round, test, one, several, few, many = slowest
    convert = max(0.0, several - one) / (COUNT - 1)
    latency = bandwidth = None
    if ranks > 1:
        latency = few / (2 * (ranks - 1).bit_length())
        bandwidth = 2 * (ranks - 1) / ranks * 8 * size / max(many - few, 1e-9)
    return CostModel(
        origin=f"measured with {ranks} rank(s) at once on {datetime.now(UTC):%Y-%m-%d}: {what}",
        device=device,
        step_s=step,
        visit_s=visit,
        round_s=round,
        convert_s=convert / size,
        restore_s=max(0.0, one - convert) / size,
        test_s=test,
        latency_s=latency,
        bandwidth=bandwidth,
    )
