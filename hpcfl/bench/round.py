"""A round of the engine against a bare PyTorch loop that does the same SGD steps and no more.

The bare loop is what one would write by hand: the model's own parameters, torch.optim.SGD, the
same batches and augmentation, and a running mean of the clients' models.  It draws no streams,
keeps no states, sums nothing exactly, logs nothing.  Both sides take turns in one process.

The bare loop is FedAvg whatever the job's algorithm is.  Where that is FedAvg too, both sides must
go the same way in every turn.
"""

import copy
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.assemble import Parts, assemble, device_of, wire
from hpcfl.comm.solo import Solo
from hpcfl.engine import play
from hpcfl.errors import HpcflError, JobError
from hpcfl.job import Loaded, load
from hpcfl.placement import owners
from hpcfl.runlog import RunLog
from hpcfl.runtime import Run
from hpcfl.signals import Signals
from hpcfl.tasks.losses import LOSSES
from hpcfl.types import Batch, Record, Vector
from hpcfl.vectors import load as load_vector
from hpcfl.vectors import parameters

SOFTMAX = """
task: digits
data: {clients: 100}
cohort: {kind: uniform, size: 10}
algorithm: {name: fedavg}
local: {epochs: 1, batch_size: 16, lr: 0.1}
rounds: 1000
"""
LENET = """
task: cifar10-lenet
data: {root: ROOT, clients: 10}
cohort: {kind: uniform, size: 2}
algorithm: {name: fedavg}
local: {epochs: 1, batch_size: 64, lr: 0.01, weight_decay: 1.0e-3}
rounds: 13
"""
PAIRS = 12  # turns of each side
# How far apart both sides may end a turn that they began at one model, relative to how far they
# went.  Rounding that tips a ReLU or a maximum makes 1e-4 of it in float32, other work much more.
TOLERANCE = {"float64": 1e-6, "float32": 1e-2, "tf32": 0.1, "bf16": 0.1}


class Turn(NamedTuple):
    """Medians over the turns of one job."""

    name: str
    visits: int
    """Client visits a turn."""
    engine_s: float
    bare_s: float
    ratio: float
    """The median over the turns of engine time / bare time."""
    gap: float | None
    """How far apart a turn ended over how far it went, at most; None where FedAvg is not played."""

    @property
    def overhead_ms(self) -> float:
        """Engine time over the bare loop's, per client visit."""
        return 1e3 * (self.engine_s - self.bare_s) / self.visits


def built_in(folder: Path) -> list[Loaded]:
    """Softmax regression on digits, and LeNet on random images in CIFAR-10's shape."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (5000, 3, 32, 32), dtype=np.uint8)
    labels = draw.integers(0, 10, 5000)
    np.savez(
        folder / "cifar10.npz",
        x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10],
    )  # fmt: skip
    jobs = []
    for name, text in (("softmax-digits", SOFTMAX), ("lenet-cifar10", LENET)):
        path = folder / f"{name}.yaml"
        path.write_text(text.replace("ROOT", str(folder)))
        jobs.append(load(path))
    return jobs


def measure(loaded: Loaded, folder: Path, pairs: int = PAIRS) -> Turn:
    """Time the job's rounds in ``pairs`` turns of both sides, after a warm-up of each.

    Raises:
        JobError: the job has fewer rounds than that.
        HpcflError: both sides play FedAvg, and a turn ended at different models.
    """
    turn = loaded.job.rounds // (pairs + 1)
    if not turn:
        raise JobError(
            f"rounds: found {loaded.job.rounds}, but {pairs} turns and a warm-up play at least "
            f"{pairs + 1}; set rounds={pairs + 1} or more"
        )
    parts = assemble(loaded, device_of(loaded.job, 0))
    sizes = [len(own) for own in parts.rows]
    with (
        closing(RunLog(folder / "log.jsonl")) as log,
        closing(parts.store(folder, 0, "bench", range(len(sizes)))) as store,
    ):
        run = wire(parts, Solo(), owners(sizes, 1), store, parts.gradient(), _Desk(log), Signals())
        times, gaps = _take_turns(parts, _Engine(run, turn), _Bare(parts, run, turn), pairs)
    return Turn(
        loaded.name,
        turn * max(1, round(loaded.job.cohort.participation(len(sizes)) * len(sizes))),
        median(a for a, _ in times),
        median(b for _, b in times),
        median(a / b for a, b in times),
        max(gaps, default=None),
    )


def _take_turns(
    parts: Parts, engine: "_Engine", bare: "_Bare", pairs: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """The seconds of both sides in each turn after the first, and every turn's gap."""
    times, gaps = [], []
    for _ in range(pairs + 1):
        start = bare.x
        times.append((engine(), bare()))
        if type(parts.algorithm) is FedAvg:
            gaps.append(_gap(parts, start, engine.x, bare.x))
        bare.x = engine.x  # or rounding errors would grow from turn to turn
    return times[1:], gaps


def _gap(parts: Parts, start: Vector, engine: Vector, bare: Vector) -> float:
    """How far apart both sides ended, relative to how far they went; refused where it is much."""
    apart = float((engine - bare).norm())
    gap = apart / float((engine - start).norm()) if apart else 0.0  # a turn may have no client
    limit = TOLERANCE[parts.job.precision]
    if not gap <= limit:  # nan neither
        raise HpcflError(
            f"{parts.loaded.name}: engine and bare loop ended a turn {gap:.1e} of its way apart, "
            f"expected {limit:.0e} at most; the times of different work are not compared"
        )
    return gap


def report(turns: Sequence[Turn]) -> str:
    """A table of the turns."""
    lines = [
        "job                client visits    engine      bare   ratio   engine - bare     apart"
    ]
    lines += [
        f"{t.name:18} {t.visits:13d} {t.engine_s:8.3f} s {t.bare_s:7.3f} s {t.ratio:7.3f} "
        f"{t.overhead_ms:8.3f} ms/visit {'-' if t.gap is None else f'{t.gap:.1e}':>9}"
        for t in turns
    ]
    return "\n".join(lines)


def bench_round(job: Path | None, overrides: Sequence[str]) -> str:
    """Measure a job, or the built-in ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [load(job, overrides)] if job else built_in(folder)
        return report([measure(loaded, folder) for loaded in jobs])


class _Desk:
    """Takes the log down, as a run does; evaluates and commits nothing."""

    def __init__(self, log: RunLog) -> None:
        self._log = log

    def begin(self, round: int) -> None:
        return None

    def evaluate(self, round: int, x: Vector) -> Record:
        return {}

    def record(self, record: Record) -> None:
        self._log.write(record)

    def save(self, round: int, server: Any, kept: Mapping[str, Tensor]) -> None:
        return None


class _Engine:
    """One turn: the next rounds by the engine; returns seconds."""

    def __init__(self, run: Run, rounds: int) -> None:
        self._run, self._turn, self._done = run, rounds, 0
        self._server = run.algorithm.init_server(run.x0)

    @property
    def x(self) -> Vector:
        """The model so far."""
        return self._server.x  # type: ignore[no-any-return]

    def __call__(self) -> float:
        end = self._done + self._turn
        began = perf_counter()
        self._server = play(replace(self._run, rounds=end), self._server, self._done)
        self._done = end
        return perf_counter() - began


class _Bare:
    """One turn: the same rounds by hand; returns seconds."""

    def __init__(self, parts: Parts, run: Run, rounds: int) -> None:
        self._parts, self._run, self._turn, self._done = parts, run, rounds, 0
        self.x = run.x0.clone()
        self._model = copy.deepcopy(parts.model)
        load_vector(self._model, self.x)
        if len(parts.dataset.train.inputs.shape) == 4:
            self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        bf16 = parts.job.precision == "bf16"
        self._precision = (
            partial(torch.autocast, run.x0.device.type, torch.bfloat16) if bf16 else nullcontext
        )

    def __call__(self) -> float:
        rounds = range(self._done, self._done + self._turn)
        self._done += self._turn
        cohorts = [[self._work(int(i), t) for i in self._run.draw(t)] for t in rounds]
        began = perf_counter()
        for t, cohort in zip(rounds, cohorts, strict=True):
            if cohort:
                self._round(cohort, self._run.rate(t))
        return perf_counter() - began

    def _work(self, client: int, round: int) -> tuple[float, list[Batch]]:
        """The client's weight and batches."""
        visit = self._run.population.visit(client, round)
        return float(self._run.weights[client]), list(visit.batches)

    def _round(self, cohort: Sequence[tuple[float, list[Batch]]], rate: float) -> None:
        local = self._parts.job.local
        loss_of = LOSSES[self._parts.dataset.loss]
        mean = torch.zeros_like(self.x)
        total = sum(weight for weight, _ in cohort)
        for weight, batches in cohort:
            load_vector(self._model, self.x)
            optimizer = torch.optim.SGD(
                self._model.parameters(), lr=rate, weight_decay=local.weight_decay
            )
            for batch in batches:
                optimizer.zero_grad()
                with self._precision():
                    outputs = self._model(batch.inputs)
                loss = loss_of(outputs, batch.labels)
                loss.backward()  # type: ignore[no-untyped-call]
                if local.clip is not None:
                    torch.nn.utils.clip_grad_norm_(self._model.parameters(), local.clip)
                optimizer.step()
            mean.add_(parameters(self._model), alpha=weight / total)
        self.x = self.x.lerp(mean, self._parts.algorithm.server_lr)
