"""One life of a run: from a job or a run directory to the end, a stop or an error."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from hpcfl import buffers
from hpcfl.assemble import assemble, device_type, place, wire
from hpcfl.checkpoint import (
    Checkpoint,
    committed,
    prune,
    read,
    read_kept,
    read_server,
)
from hpcfl.comm.launch import connect
from hpcfl.comm.together import group, together
from hpcfl.comm.watched import Watched
from hpcfl.engine import play
from hpcfl.errors import JobError, StoreError
from hpcfl.evaluation import Clients, Evaluation
from hpcfl.job import Loaded, load
from hpcfl.life import Desk, Life
from hpcfl.progress import open_progress
from hpcfl.rundir import RunDir
from hpcfl.runlog import cut
from hpcfl.signals import Signals
from hpcfl.store.durable import storing
from hpcfl.types import Record, Vector


@dataclass(frozen=True)
class Result:
    """What a finished run leaves."""

    path: Path
    """The run directory."""
    rounds: int
    """Rounds completed."""
    x: Vector
    """The final model, flat, on the CPU."""

    @property
    def log(self) -> list[Record]:
        """One object a round, from log.jsonl."""
        return [json.loads(line) for line in (self.path / "log.jsonl").read_text().splitlines()]


def start(loaded: Loaded, out: Path | None = None) -> Result:
    """Begin a run in a directory of its own; collective if a launcher started several ranks.

    Args:
        loaded: the checked job.
        out: the run directory; runs/NAME when absent.

    Raises:
        JobError: nothing was trained.
        DivergedError, Stopped: see ``hpcfl.engine.play``.
    """
    folder = RunDir(out or Path("runs") / loaded.name)

    def begin(life: Life) -> _Beginning:
        parts = life.parts
        with together(life.comm):
            if life.comm.rank == 0:
                folder.claim(parts.loaded.tree)
                folder.write_initial(parts.x0)
                buffers.write(folder.buffers, parts.buffers)
                # Of a start that died before its first checkpoint.
                cut(folder.log, 0)
                life.best.restore(None)
        life.comm.settle(folder.ranks)
        life.open_store()
        server = parts.algorithm.init_server(parts.x0)
        life.save(0, server, {}, log_bytes=0)
        return _Beginning(server, 0, {})

    return _live(loaded, folder, begin)


def resume(root: Path) -> Result:
    """Take up a run again from its last checkpoint, on any number of ranks; collective.

    Raises:
        JobError: the directory holds no run, or one that is alive.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: see ``hpcfl.engine.play``.
    """
    folder = RunDir(root)
    folder.require()

    def begin(life: Life) -> _Beginning:
        parts, comm = life.parts, life.comm
        names = ""
        with together(comm):
            if comm.rank == 0:
                folder.lock()
                found = committed(folder.checkpoints)
                _check_newest(found, folder)
                prune(folder.checkpoints)
                life.prune_stores([checkpoint.folder for checkpoint in found])
                cut(folder.log, found[-1].log_bytes)
                names = " ".join(checkpoint.folder.name for checkpoint in found)
        comm.settle(folder.ranks)
        kept_folders = [folder.checkpoints / name for name in comm.share(names).split()]
        with together(comm):
            newest = read(kept_folders[-1])
            server = read_server(newest, parts.schema.server, parts.device)
            kept = read_kept(newest, parts.device)
            buffers.read(folder.buffers, parts.buffers)
            life.parts = replace(parts, x0=folder.read_initial(parts.x0).to(parts.device))
            if comm.rank == 0:
                life.best.restore(newest.best)
        life.open_store()
        with together(comm):
            life.take_over(newest, kept_folders)
        return _Beginning(server, newest.round, kept)

    return _live(load(folder.job), folder, begin, resumed=True)


class _Beginning(NamedTuple):
    """Where one start of the program begins."""

    server: Any
    round: int
    """Rounds completed."""
    kept: Mapping[str, Tensor]
    """What else a checkpoint kept."""


def _live(
    loaded: Loaded,
    folder: RunDir,
    begin: Callable[[Life], _Beginning],
    *,
    resumed: bool = False,
) -> Result:
    """Collective: make the parts, ``begin`` from nothing or from a checkpoint, play to the end."""
    config = loaded.job.comm
    ranks = connect(config.backend, device_type(loaded.job), config.timeout_s)
    comm = Watched(ranks, config.timeout_s)
    with (
        group(comm),
        Signals() as signals,  # after MPI's start, which takes SIGUSR1 for itself
        folder,
    ):
        device = place(loaded.job, comm)
        with together(comm):
            if comm.rank == 0:
                loaded.job.data.fetch()
                if not resumed:
                    loaded.job.model.fetch()
        with together(comm):
            parts = assemble(loaded, device, resumed=resumed)
        with closing(Life(parts, folder, comm)) as life:
            x = _play(life, begin(life), signals)
        return Result(folder.root, parts.job.rounds, x)


def _play(life: Life, beginning: _Beginning, signals: Signals) -> Vector:
    """Collective: play to the end; the final model."""
    parts, folder, comm = life.parts, life.folder, life.comm
    done = beginning.round
    gradient = parts.gradient()
    clients = Clients(
        parts.population,
        np.flatnonzero(life.owner == comm.rank).tolist(),
        parts.weights,
        partial(parts.own_model, life.store),
    )
    evaluation = Evaluation(
        parts.job.evaluate, gradient, parts.dataset, parts.tests(), clients, comm
    )
    with (
        open_progress(folder.root.name, parts.job.rounds, done, comm.rank) as progress,
        closing(Desk(life, evaluation, progress)) as desk,
    ):
        finished = done == parts.job.rounds
        progress.note(f"{folder.root}: finished, nothing to do" if finished else life.opening(done))
        if comm.rank == 0:
            for change in folder.changes():
                progress.note(change)
            with storing(folder.history):
                folder.note_start(
                    {
                        "life": life.name,
                        "round": done,
                        "ranks": comm.size,
                        "device": parts.device.type,
                    }
                )
        run = wire(parts, comm, life.owner, life.store, gradient, desk, signals)
        run.observer.restore(beginning.kept)
        try:
            server = play(run, beginning.server, done)
        except StoreError as e:
            e.exit_code = 1  # 2 says that nothing was trained
            raise
    final: Vector = server.x.cpu()
    return final


def _check_newest(kept: list[Checkpoint], folder: RunDir) -> None:
    """Refuse to resume from nothing, or another job than the one that was checkpointed."""
    if not kept:
        raise StoreError(
            f"{folder.checkpoints}: holds no checkpoint; run the job again into {folder.root}"
        )
    if kept[-1].job != folder.mark:
        raise JobError(
            f"{folder.job}: was changed after the checkpoint of round {kept[-1].round}; put it "
            "back, or run the changed job into another directory"
        )
