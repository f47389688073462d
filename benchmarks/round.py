"""Compare a round of the engine with a bare PyTorch loop that does the same SGD steps.

The bare loop is written as one would by hand: the model's own parameters, torch.optim.SGD, the
same batches, augmentation and dropout masks, and a running mean of the clients' models.  It keeps
no client states, has no exact mean and writes no log.  Both sides run alternately in one process.

The bare loop is FedAvg, whatever the job's algorithm is.  If the algorithm is FedAvg too, both
sides must end every turn at nearly the same model; else their times would be of different work.
"""

import copy
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from common import Measurement, Result, column, main, parser
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.engine.run import Run
from hpcfl.errors import HpcflError, JobError
from hpcfl.io.progress import track
from hpcfl.job.load import load
from hpcfl.job.schema import LoadedJob
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.local.gradient import LayerSeeds
from hpcfl.models.flat_vector import load as load_vector
from hpcfl.models.flat_vector import parameters
from hpcfl.models.losses import LOSSES
from hpcfl.start.components.components import Components
from hpcfl.types import Batch, Vector
from timed_rounds import Clock, TimedRounds, build_timed_run

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
# For tables in which the times of all other sides include the loading of their batches.
BARE_NOTE = "(bare loop: without the time in which its batches are made)"
# The largest distance between the models of both sides after a turn, relative to the distance from
# the model that they started from.  In float32, rounding that flips a ReLU or a maximum gives 1e-4;
# different work gives much more.
TOLERANCE = {"float64": 1e-6, "float32": 1e-2, "tf32": 0.1, "bf16": 0.1}


class Comparison(NamedTuple):
    """Both sides' times for one job."""

    name: str
    visits: Sequence[int]
    """Local trainings of a client in each measured turn."""
    engine: Measurement
    bare: Measurement
    gap: float | None
    """The largest distance of both models, see ``TOLERANCE``; None unless it is FedAvg."""

    @property
    def visits_of_turn(self) -> float:
        """Their mean over the turns; cohorts may be of different sizes."""
        return fmean(self.visits)

    @property
    def overhead_ms(self) -> float | None:
        """The engine's additional milliseconds for one local training of a client.

        The difference of both sides' medians over the turns with a client; None if there is none.
        """
        trained = [turn for turn, visits in enumerate(self.visits) if visits]
        if not trained:
            return None
        engine, bare = (
            median(side.values[turn] / self.visits[turn] for turn in trained)
            for side in (self.engine, self.bare)
        )
        return 1e3 * (engine - bare)


def write_images(folder: Path, count: int = 5000) -> None:
    """Write ``count`` random images in CIFAR-10's shape to cifar10.npz."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = draw.integers(0, 10, count)
    np.savez(
        folder / "cifar10.npz",
        x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10],
    )  # fmt: skip


def built_in_jobs(folder: Path) -> list[LoadedJob]:
    """Two jobs: softmax regression on digits, and LeNet on random images in CIFAR-10's shape."""
    write_images(folder)
    jobs = []
    for name, text in (("softmax-digits", SOFTMAX), ("lenet-cifar10", LENET)):
        path = folder / f"{name}.yaml"
        path.write_text(text.replace("ROOT", str(folder)))
        jobs.append(load(path))
    return jobs


def measure(loaded: LoadedJob, folder: Path, pairs: int = PAIRS) -> Comparison:
    """Time the job's rounds in ``pairs`` turns of both sides, after one turn as a warm-up.

    Raises:
        JobError: the job has fewer rounds than that.
        HpcflError: the algorithm is FedAvg, and a turn ended at different models.
    """
    rounds = loaded.job.rounds // (pairs + 1)  # of a turn
    if not rounds:
        raise JobError(
            f"rounds: found {loaded.job.rounds}, but {pairs} turns and a warm-up need at least "
            f"{pairs + 1}; set rounds={pairs + 1} or more"
        )
    with ExitStack() as stack:
        components, run, _ = build_timed_run(loaded, folder, stack)
        times, gaps = _take_turns(
            components, TimedRounds(run, rounds), BareLoop(components, run, rounds), pairs
        )
    visits = [len(run.schedule.participation(t).members) for t in range(rounds * (pairs + 1))]
    return Comparison(
        loaded.name,
        [sum(visits[k : k + rounds]) for k in range(rounds, len(visits), rounds)],
        Measurement(loaded.name, "engine", "s", [a for a, _ in times]),
        Measurement(loaded.name, "bare loop", "s", [b for _, b in times]),
        max(gaps, default=None),
    )


def _take_turns(
    components: Components, engine: TimedRounds, bare: "BareLoop", pairs: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """The seconds of both sides in each turn after the first, and every turn's gap."""
    times, gaps = [], []
    what = f"round: {components.loaded.name}: turns"
    for _ in track(range(pairs + 1), what, pairs + 1, thread=False):
        start = bare.x
        times.append((engine(), bare()))
        if type(components.training.algorithm) is FedAvg:
            gaps.append(_gap(components, start, engine.x, bare.x))
        bare.x = engine.x  # otherwise rounding errors would grow from turn to turn
    return times[1:], gaps


def _gap(components: Components, start: Vector, engine: Vector, bare: Vector) -> float:
    """The distance between the models of both sides after a turn, relative to their way.

    Raises:
        HpcflError: it is above the tolerance.
    """
    apart = float((engine - bare).norm())
    gap = apart / float((engine - start).norm()) if apart else 0.0  # a turn may have no client
    limit = TOLERANCE[components.job.precision]
    if not gap <= limit:  # so written, NaN is refused too
        raise HpcflError(
            f"{components.loaded.name}: engine and bare loop ended a turn {gap:.1e} of its way "
            f"apart, expected {limit:.0e} at most; the times of different work are not compared"
        )
    return gap


def report(comparisons: Sequence[Comparison]) -> str:
    """A table with a line for each job."""
    lines = [
        "job                client visits    engine      bare   ratio   engine - bare     apart"
    ]
    lines += [
        f"{column(t.name, 18)} {t.visits_of_turn:13g} {t.engine.median:8.3f} s "
        f"{t.bare.median:7.3f} s {t.engine.over(t.bare):7.3f} "
        f"{'-' if t.overhead_ms is None else f'{t.overhead_ms:.3f}':>8} ms/visit "
        f"{'-' if t.gap is None else f'{t.gap:.1e}':>9}"
        for t in comparisons
    ]
    return "\n".join(lines)


def bench_round(job: Path | None, overrides: Sequence[str]) -> Result:
    """Measure a job, or the built-in jobs if none is given."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [load(job, overrides)] if job else built_in_jobs(folder)
        comparisons = [measure(loaded, folder) for loaded in jobs]
    about = {
        t.name: {"visits": t.visits_of_turn, "overhead_ms": t.overhead_ms, "gap": t.gap}
        for t in comparisons
    }
    figures = [side for t in comparisons for side in (t.engine, t.bare)]
    return Result("round", report(comparisons), figures, about)


class _Visit(NamedTuple):
    """The work of one local training of a client."""

    weight: float
    """Of the client in the mean."""
    batches: list[Batch]
    seed: int
    """Of the first step's dropout; that of each further step is larger by 1, as the engine's."""


class BareLoop:
    """Runs FedAvg rounds of a run by hand, ``rounds`` in each call, as ``TimedRounds`` does."""

    def __init__(
        self, components: Components, run: Run, rounds: int, clock: Clock = perf_counter
    ) -> None:
        self._components, self._run, self._turn, self._done = components, run, rounds, 0
        self._clock = clock
        self.x = run.x0.clone()
        self._model = copy.deepcopy(components.model.module)
        load_vector(self._model, self.x)
        self._seed_layers = LayerSeeds(self._model)
        if len(components.population.dataset.train.inputs.shape) == 4:
            self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        bf16 = components.job.precision == "bf16"
        self._precision = partial(autocast_bfloat16, run.x0.device.type) if bf16 else nullcontext

    def __call__(self) -> float:
        """Run the next rounds; return their seconds, without the loading of their batches."""
        rounds = range(self._done, self._done + self._turn)
        self._done += self._turn
        return sum(map(self._timed_round, rounds))

    def _timed_round(self, t: int) -> float:
        """Run a round; its batches are dropped with it, as those of a turn can be too large."""
        members = self._run.schedule.participation(t).members
        cohort = [self._work(int(client), t) for client in members]
        self._wait()
        began = self._clock()
        if cohort:
            self._round(cohort, self._run.schedule.local_lr(t))
        self._wait()
        return self._clock() - began

    def _wait(self) -> None:
        """Wait for the GPU, whose kernels end after their launch."""
        if self.x.device.type == "cuda":
            torch.cuda.synchronize(self.x.device)

    def _work(self, client: int, round: int) -> _Visit:
        task = self._run.training.clients.task(client, round)
        weight = float(self._components.population.weights[client])
        return _Visit(weight, list(task.batches), task.dropout_seed)

    def _round(self, cohort: Sequence[_Visit], local_lr: float) -> None:
        local = self._components.job.local
        loss_of = LOSSES[self._components.population.dataset.loss]
        mean = torch.zeros_like(self.x)
        total = sum(visit.weight for visit in cohort)
        for weight, batches, seed in cohort:
            load_vector(self._model, self.x)
            optimizer = torch.optim.SGD(
                self._model.parameters(),
                lr=local_lr,
                weight_decay=local.weight_decay,
                momentum=local.momentum,
                nesterov=local.nesterov,
            )
            for step, batch in enumerate(batches):
                self._seed_layers(seed + step)
                optimizer.zero_grad()
                with self._precision():
                    outputs = self._model(batch.inputs)
                loss = loss_of(outputs, batch.labels)
                loss.backward()  # type: ignore[no-untyped-call]
                if local.clip is not None:
                    torch.nn.utils.clip_grad_norm_(self._model.parameters(), local.clip)
                optimizer.step()
            mean.add_(parameters(self._model), alpha=weight / total)
        self.x = self.x.lerp(mean, self._components.training.algorithm.server_lr)


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself."""
    options = parser("A round against a bare loop of the same SGD steps.", job=True)
    return main(options.parse_args(words), lambda o: bench_round(o.job, o.overrides))


if __name__ == "__main__":
    sys.exit(command())
