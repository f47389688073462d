"""Measure what a round of a job takes: by the log of its first rounds, which are run."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from hpcfl.comm.launcher import detect
from hpcfl.errors import JobError
from hpcfl.io.words import counted
from hpcfl.job.schema import LoadedJob
from hpcfl.start.short_run import run_shortly

ROUNDS, SECONDS = 5, 5.0  # rounds are run until both are reached, after one that warms up
TRAINING = ("sample", "read", "compute", "wait")
"""The phases of a round until the slowest rank has trained its clients."""


class TimedRound(NamedTuple):
    """A round that was measured."""

    number: int
    """Counted from 0."""
    train_s: float
    """Until the slowest rank had trained its clients."""


class Measurement(NamedTuple):
    """What rounds of a job took."""

    ranks: int
    machine: str
    """The name of the GPU, or of the processor."""
    gpus: bool
    """Whether each rank had a GPU."""
    memory: int
    """Bytes of the rank's process that took most, at its peak; 0 where the system does not tell."""
    gpu_memory: int
    """Bytes of the tensors on a GPU, likewise; 0 on CPUs."""
    rounds: Sequence[TimedRound]
    mean_s: float
    """The mean of the uploads over the ranks."""
    rest_s: float
    """All else of a round without evaluation."""
    evaluate_s: float
    """One evaluation."""
    warm_start_s: float
    """What a warm start takes before round 1."""

    def __str__(self) -> str:
        return f"measured on {counted(self.ranks, 'rank')}, {self.machine}"


def measure(loaded: LoadedJob, near: Path, most: int) -> Measurement:
    """Collective: run a few rounds of a job on the ranks that are there; nothing is kept.

    Args:
        loaded: the job.
        near: the run directory of the job, beside which the rounds have theirs.
        most: the largest number of ranks whose time is to be predicted.

    Raises:
        JobError, DataError: something in the job does not fit, or less than two of its rounds have
            a client; or the time of several ranks is asked of one, which has no all-reduce.
        DivergedError: see ``hpcfl.engine.loop.run_rounds``.
    """
    if detect(os.environ).size == 1 < most:
        raise JobError(
            f"plan: found {most} ranks, but one that measures, which says nothing of an "
            f"all-reduce; say mpirun -n 2 hpcfl plan JOB --ranks {most} --measure"
        )
    found, job = run_shortly(loaded, near, ROUNDS, SECONDS), loaded.job
    trained = [line for line in found.log if line.get("clients")][1:]
    if not trained:
        raise JobError(
            f"rounds: found {job.rounds}, expected 2 at least that have a client: the first warms "
            f"up; set rounds={ROUNDS + 1}, and larger cohorts where most are empty"
        )
    evaluated = [
        line for line in found.log if line["round"] % ROUNDS == 0 or line["round"] == job.rounds
    ]
    # Candidates compute their losses in the time of evaluations.
    choice_s = _median(line["evaluate_s"] for line in trained if line not in evaluated)
    warm_start = [line for line in found.log if not line["round"] and "down_bytes" in line]
    return Measurement(
        ranks=len(found.memory),
        machine=found.machine,
        gpus=found.gpus,
        memory=max(found.memory),
        gpu_memory=max(line.get("device_bytes", 0) for line in trained),
        rounds=[
            TimedRound(line["round"] - 1, sum(line[f"{phase}_s"] for phase in TRAINING))
            for line in trained
        ],
        mean_s=_median(line["reduce_s"] for line in trained),
        rest_s=choice_s + _median(line["update_s"] + line["write_s"] for line in trained),
        evaluate_s=max(0.0, evaluated[-1]["evaluate_s"] - choice_s) if evaluated else 0.0,
        warm_start_s=sum(line["wall_s"] - line["evaluate_s"] for line in warm_start),
    )


def _median(seconds: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    return median([*seconds] or [0.0])
