"""One life of a run: from a job or a run directory to the end, a stop or an error."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.assemble import Parts, assemble, device_type, place, wire
from hpcfl.checkpoint import (
    Checkpoint,
    committed,
    fingerprint,
    read,
    read_kept,
    read_server,
    save,
    sweep,
)
from hpcfl.comm.base import Comm
from hpcfl.comm.launch import connect
from hpcfl.comm.together import group, together
from hpcfl.engine import play
from hpcfl.errors import JobError, RankError, StoreError
from hpcfl.evaluation import Evaluation
from hpcfl.job import Loaded, load
from hpcfl.placement import owners
from hpcfl.progress import Progress, open_progress
from hpcfl.rundir import RunDir
from hpcfl.runlog import RunLog, cut
from hpcfl.signals import Signals
from hpcfl.store import rows as row_tables
from hpcfl.store.base import ClientStore
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

    def begin(life: _Life) -> _Beginning:
        parts = life.parts
        with together(life.comm):
            if life.comm.rank == 0:
                folder.claim(parts.loaded.tree)
                folder.write_initial(parts.x0)
                cut(folder.log, 0)  # of a start that died before its first checkpoint
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

    def begin(life: _Life) -> _Beginning:
        parts, comm = life.parts, life.comm
        names = ""
        with together(comm):
            if comm.rank == 0:
                folder.lock()
                found = committed(folder.checkpoints)
                _check_newest(found, folder)
                sweep(folder.checkpoints)
                life.sweep_stores([checkpoint.folder for checkpoint in found])
                cut(folder.log, found[-1].log_bytes)
                names = " ".join(checkpoint.folder.name for checkpoint in found)
        kept_folders = [folder.checkpoints / name for name in comm.share(names).split()]
        with together(comm):
            newest = read(kept_folders[-1])
            server = read_server(newest, parts.schema.server, parts.device)
            kept = read_kept(newest, parts.device)
            life.parts = replace(parts, x0=folder.read_initial(parts.x0).to(parts.device))
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


class _Life:
    """What one start of the program holds on one rank."""

    def __init__(self, parts: Parts, folder: RunDir, comm: Comm) -> None:
        self.parts, self.folder, self.comm = parts, folder, comm
        self.name = comm.share(token_hex(4))
        with together(comm):
            self.owner: NDArray[np.int64] = owners([len(own) for own in parts.rows], comm.size)
        self._store: ClientStore | None = None

    @property
    def store(self) -> ClientStore:
        """The home of this rank's client states, once it is open."""
        if self._store is None:
            raise RuntimeError("the store is not open yet")
        return self._store

    def open_store(self) -> None:
        """Collective: open the home of this rank's client states."""
        own = np.flatnonzero(self.owner == self.comm.rank).tolist()
        with together(self.comm):
            self._store = self.parts.store(self.folder.stores, self.comm.rank, self.name, own)

    def take_over(self, newest: Checkpoint, kept: list[Path]) -> None:
        """Let the store go on from a checkpoint."""
        table = row_tables.Table.load(newest.folder, self.folder.stores)
        if table.ranks != newest.ranks:
            raise StoreError(
                f"{newest.folder}: row tables of {table.ranks} ranks, expected {newest.ranks}"
            )
        if newest.ranks == self.comm.size:
            self.store.adopt(table)
        else:
            self.store.rehome(table)
        self.store.keep(kept)

    def save(self, round: int, server: Any, kept: Mapping[str, Tensor], *, log_bytes: int) -> None:
        """Collective: commit a checkpoint.

        Raises:
            RankError: the ranks' models differ.
        """
        mark = float(fingerprint(server))
        low, high = self.comm.max(np.array([-mark, mark]))
        if -low != high:
            error = RankError(
                f"round {round}: the ranks' models differ (checksums {-low:.0f} to {high:.0f}), so "
                "no checkpoint was written; are all ranks on one processor model and one torch?"
            )
            error.collective = True
            raise error
        folders = save(
            self.folder.checkpoints,
            round,
            server,
            kept,
            self.store,
            self.comm,
            job=self.folder.mark,
            log_bytes=log_bytes,
            keep=self.parts.job.checkpoint.keep,
        )
        if self.comm.rank == 0:
            self.sweep_stores(folders)

    def sweep_stores(self, kept: list[Path]) -> None:
        """Delete the segments of earlier lives that no checkpoint needs; on rank 0 alone."""
        row_tables.sweep(self.folder.stores, row_tables.named(kept), self.name)

    def close(self) -> None:
        """Release the files of the store, if it was opened."""
        if self._store is not None:
            self._store.close()

    def opening(self, done: int) -> str:
        """One line: what is about to run."""
        parts = self.parts
        algorithm = dict(parts.loaded.tree["algorithm"])
        name = algorithm.pop("name")
        settings = ", ".join(f"{key} {json.dumps(value)}" for key, value in algorithm.items())
        return (
            f"{name} ({settings}): {len(parts.rows)} clients, "
            f"{parts.x0.numel()} parameters, {self.comm.size} rank(s) by "
            f"{type(self.comm).__name__.lower()} on {parts.device.type}, {parts.job.precision}, "
            f"into {self.folder.root}"
            + (f", from round {done}" if done else "")
            + (f"; model.init left out {', '.join(parts.skipped)}" if parts.skipped else "")
        )


class _Desk:
    """The engine's surroundings: evaluation, log, progress and checkpoints of one rank."""

    def __init__(self, life: _Life, evaluation: Evaluation, progress: Progress) -> None:
        self._life, self._evaluation, self._progress = life, evaluation, progress
        self._log = RunLog(life.folder.log if life.comm.rank == 0 else None)

    def evaluate(self, x: Vector) -> Record:
        """Collective: the scores of ``x``, and the time they took."""
        began = perf_counter()
        return {**self._evaluation.scores(x), "evaluate_s": perf_counter() - began}

    def record(self, record: Record) -> None:
        """Append to the log, and tell the person who watches."""
        if self._life.comm.rank == 0:
            self._log.write(record)
            self._progress.round(record)

    def save(self, round: int, server: Any, kept: Mapping[str, Tensor]) -> None:
        """Collective: commit a checkpoint."""
        self._life.save(round, server, kept, log_bytes=self._log.sync())

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _live(
    loaded: Loaded,
    folder: RunDir,
    begin: Callable[[_Life], _Beginning],
    *,
    resumed: bool = False,
) -> Result:
    """Collective: make the parts, ``begin`` from nothing or from a checkpoint, play to the end."""
    config = loaded.job.comm
    with (
        group(connect(config.backend, device_type(loaded.job), config.timeout_s)) as comm,
        Signals() as signals,  # after MPI's start, which takes SIGUSR1 for itself
        folder,
    ):
        device = place(loaded.job, comm)
        with together(comm):
            if comm.rank == 0:
                loaded.job.data.fetch()
        with together(comm):
            parts = assemble(loaded, device, resumed=resumed)
        with closing(_Life(parts, folder, comm)) as life:
            x = _play(life, begin(life), signals)
        return Result(folder.root, parts.job.rounds, x)


def _play(life: _Life, beginning: _Beginning, signals: Signals) -> Vector:
    """Collective: play to the end; the final model."""
    parts, folder, comm = life.parts, life.folder, life.comm
    done = beginning.round
    gradient = parts.gradient()
    evaluation = Evaluation(gradient, parts.tests(), parts.dataset.loss, comm)
    with (
        open_progress(folder.root.name, parts.job.rounds, done, comm.rank) as progress,
        closing(_Desk(life, evaluation, progress)) as desk,
    ):
        progress.note(life.opening(done))
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
