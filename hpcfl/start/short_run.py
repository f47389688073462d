"""Run the first rounds of a job as any start does, on the ranks that are there; keep nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import monotonic
from typing import Any, NamedTuple

import torch

from hpcfl.comm.failure import from_rank_0, group
from hpcfl.comm.watched import WatchedComm
from hpcfl.engine.callbacks import Callback, RoundModel
from hpcfl.errors import JobError, Stopped
from hpcfl.io.memory import peak_memory
from hpcfl.io.signals import set_resumable
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader
from hpcfl.start.device import device_type
from hpcfl.start.environment import versions
from hpcfl.start.request import StartRequest
from hpcfl.start.start import join_ranks, serve
from hpcfl.types import Record


class ShortRun(NamedTuple):
    """What is left of it."""

    log: Sequence[dict[str, Any]]
    """The lines of its log."""
    memory: Sequence[int]
    """By rank, the bytes of its process at their peak; 0 where the system does not tell."""
    machine: str
    """The name of the GPU, or of the processor."""
    gpus: bool
    """Whether each rank had a GPU."""


class EndEarly(Callback):
    """Ends a run when its rounds are enough.

    Args:
        rounds: that have clients, after a first one.
        seconds: that they take together, at least.
    """

    def __init__(self, rounds: int, seconds: float) -> None:
        self._rounds, self._seconds = rounds, seconds
        self._trained, self._began = 0, 0.0

    def round(self, record: Record, model: RoundModel) -> bool:
        """Whether the rounds so far are enough."""
        self._trained += bool(record.get("clients"))
        if not self._began and self._trained:
            self._began = monotonic()
        enough = self._trained > self._rounds
        return enough and monotonic() - self._began >= self._seconds


def run_shortly(loaded: LoadedJob, near: Path, rounds: int, seconds: float) -> ShortRun:
    """Collective: run the first rounds, without the job's callbacks and its rule to stop.

    Args:
        loaded: the job; it is evaluated after so many ``rounds`` too.
        near: the run directory of the job, beside which this run has its own for a while.
        rounds: to run after the first one that has clients, at least.
        seconds: that they take together, at least.

    Raises:
        JobError, DataError: something in the job does not fit, or a signal ended the run.
        DivergedError: see ``hpcfl.engine.loop.run_rounds``.
    """
    job = replace(loaded.job, callbacks=(), stop=None)
    loaded = replace(loaded, job=job).changed("evaluate", every=rounds, last=0)
    comm, folder = join_ranks(job, near), Path()
    try:
        with group(comm):
            folder = Path(from_rank_0(comm, lambda: _make_folder(near)))
            return _run(loaded, RunDir(folder / near.name), comm, EndEarly(rounds, seconds))
    except Stopped as e:
        raise JobError(f"{near.name}: a signal ended the rounds; nothing of them is kept") from e
    finally:
        set_resumable(None)
        if comm.rank == 0 and folder.name:
            rmtree(folder, ignore_errors=True)


def _make_folder(near: Path) -> str:
    """A new folder on the file system where the run directory will be."""
    there = next(path for path in near.absolute().parents if path.is_dir())
    try:
        return mkdtemp(prefix="hpcfl-plan-", dir=there)
    except OSError as e:
        raise JobError(
            f"{there}: no folder can be made there to measure in: {e.strerror}; plan in "
            "another folder"
        ) from e


def _run(loaded: LoadedJob, folder: RunDir, comm: WatchedComm, end: EndEarly) -> ShortRun:
    serve(StartRequest(loaded, folder, callbacks=[end] if comm.rank == 0 else []), comm)
    log = from_rank_0(comm, lambda: [*map(dict, LogReader(folder.log).read())])
    memory = [int(peak) for peak in comm.allgather(f"{peak_memory()}")]
    device = torch.device(device_type(loaded.job))
    found = versions(device)
    machine = found.get("gpu") or found["processor"]
    return ShortRun(log, memory, machine, device.type == "cuda")
