"""Measure the parts of a round's time on this machine, each separately, for ``hpcfl plan``.

All ranks measure at the same time, as they share the machine in a run: rounds of the job on each
rank alone, the exact mean of vectors of the job's size, and all-reduces over the ranks.  The result
is that of the slowest rank.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from time import perf_counter
from typing import Any

import numpy as np
import torch

from hpcfl.bench.reduce import means
from hpcfl.bench.result import WIDTH, Measurement, Result
from hpcfl.bench.timed_rounds import BenchRun, TimedRounds, build_bench_run
from hpcfl.comm.base import Comm
from hpcfl.comm.connect import connect
from hpcfl.comm.failure import group
from hpcfl.comm.solo import Solo
from hpcfl.errors import JobError
from hpcfl.evaluation.measure import Meter
from hpcfl.io.progress import track
from hpcfl.job.schema import load
from hpcfl.plan.cost_model import CostModel
from hpcfl.plan.time import kind, work
from hpcfl.runner.device import device_type
from hpcfl.runner.environment import versions

ROUNDS, SECONDS = 5, 5.0  # rounds are run until both are reached
TURNS = 9
COUNT = 3  # uploads of the larger of two means, whose difference is the cost of an upload
BATCHES = 4  # measured batches of the test set, at most


def bench_costs(job: Path, overrides: Sequence[str]) -> Result | None:
    """Collective: measure the costs of a job; None on all ranks but rank 0.

    Raises:
        JobError, DataError: something in the job does not fit.
    """
    loaded = load(job, overrides)
    comms = loaded.job.comm
    with (
        group(connect(comms.backend, device_type(loaded.job), comms.timeout_s)) as comm,
        tempfile.TemporaryDirectory() as name,
        ExitStack() as stack,
    ):
        side = build_bench_run(loaded, Path(name), stack)
        size = work(side.components).parameters
        comm.barrier()
        figures = [*_rounds(side, Path(name), show_progress=comm.rank == 0), _tests(side)]
        figures += _mean(size, side.components.device)
        figures += _exchange(comm, size, side.components.device)
        slowest = comm.allreduce_max(np.array([figure.median for figure in figures])).tolist()
        if comm.rank:
            return None
        device = side.components.device
        machine = versions(device)
        what = f"{loaded.name}, {machine.get('gpu') or machine['processor']}"
        costs = replace(
            _cost_model(slowest, comm.size, size, what),
            of=kind(side.components),
            device=device_type(loaded.job),
        )
        about = {"costs": costs.tree(), "ranks": comm.size}
        return Result("bench costs", report(costs), figures, about, device)


def report(costs: CostModel) -> str:
    """A text with a line for each cost."""
    return "\n".join(
        fill(
            f"{name:10} {value if isinstance(value, str) else f'{value:.4g}'}",
            WIDTH,
            subsequent_indent=" " * 11,
        )
        for name, value in costs.tree().items()
        if value is not None
    )


def _rounds(side: BenchRun, folder: Path, *, show_progress: bool) -> list[Measurement]:
    """The seconds of a step, of a client besides its steps, of a round besides its clients."""
    steps, run = work(side.components).steps, side.run
    timed = _timed_rounds(TimedRounds(run, 1), run.schedule.rounds)
    for _ in track(timed, "bench costs: rounds", thread=False) if show_progress else timed:
        pass
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    records = [r for r in lines if r.get("clients")][1:]
    if not records:
        raise JobError(
            f"rounds: found {run.schedule.rounds}, expected 2 at least that have a client: the "
            f"first warms up; set rounds={ROUNDS + 1}, and larger cohorts where most are empty"
        )
    done = [int(steps[run.schedule.draw(r["round"] - 1)].sum()) for r in records]
    beyond = ("sample_s", "read_s", "write_s")
    return [
        Measurement(
            "a step",
            "engine",
            "s",
            [r["compute_s"] / n for r, n in zip(records, done, strict=True)],
        ),
        Measurement(
            "a visit", "engine", "s", [sum(r[k] for k in beyond) / r["clients"] for r in records]
        ),
        Measurement("a round", "engine", "s", [r["update_s"] for r in records]),
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


def _tests(side: BenchRun) -> Measurement:
    """The seconds of one example of the test set, reading and transform included, as in a run."""
    components = side.components
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
    return Measurement("a test", "engine", "s", times[1:] or times or [0.0])


def _mean(size: int, device: torch.device) -> list[Measurement]:
    """The seconds of the exact mean of one upload and of several, on this rank alone."""
    sides = means(Solo(), size, (1, COUNT), device)
    return [Measurement("a mean", name, "s", _timed(side)) for name, side in sides.items()]


def _exchange(comm: Comm, size: int, device: torch.device) -> list[Measurement]:
    """Collective: the seconds of the two all-reduces of a round."""
    few, many = np.zeros(8), torch.zeros(size, dtype=torch.int64, device=device)
    small = _timed(lambda: comm.allreduce_max(few), comm)
    large = _timed(lambda: comm.allreduce_sum(many), comm)
    return [
        Measurement("all-reduce", "few", "s", small),
        Measurement("all-reduce", "all", "s", large),
    ]


def _timed(side: Callable[[], Any], comm: Comm | None = None) -> list[float]:
    times = []
    for _ in range(TURNS + 1):
        if comm:
            comm.barrier()
        began = perf_counter()
        side()
        times.append(perf_counter() - began)
    return times[1:]


def _cost_model(slowest: Sequence[float], ranks: int, size: int, what: str) -> CostModel:
    """Compute the costs from the medians, which are in the order of ``bench_costs``'s figures.

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
        step_s=step,
        visit_s=visit,
        round_s=round,
        convert_s=convert / size,
        restore_s=max(0.0, one - convert) / size,
        test_s=test,
        latency_s=latency,
        bandwidth=bandwidth,
    )
