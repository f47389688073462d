"""One life of a run: from a job or a run directory to the end, a stop or an error."""

import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.assemble import Parts, assemble, client_weights, device_of
from hpcfl.checkpoint import Checkpoint, committed, fingerprint, read_server, save, sweep
from hpcfl.comm.base import Comm
from hpcfl.comm.launch import connect, detect
from hpcfl.comm.together import group, together
from hpcfl.engine import Record, Run, play
from hpcfl.errors import RankError, StoreError
from hpcfl.evaluation import Evaluation
from hpcfl.job import Loaded, load
from hpcfl.placement import owners
from hpcfl.progress import Progress, open_progress
from hpcfl.rundir import RunDir
from hpcfl.runlog import RunLog, cut
from hpcfl.schema import traffic
from hpcfl.signals import Signals
from hpcfl.store import rows as row_tables
from hpcfl.store.base import ClientStore
from hpcfl.types import Vector


class Result(NamedTuple):
    """What a finished run leaves."""

    path: Path
    """The run directory."""
    round: int
    x: Vector
    """The final model, flat, on the CPU."""
    log: tuple[Record, ...]
    """One object a round, as in log.jsonl."""


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
    with folder, group(_connect(loaded)) as comm:
        signals = Signals().listen()  # after MPI's start, which takes SIGUSR1 for itself
        life = comm.share(token_hex(4))
        with together(comm):
            parts = assemble(loaded, device_of(loaded.job, comm.local_rank))
            owner = owners([len(own) for own in parts.rows], comm.size)
        with together(comm):
            if comm.rank == 0:
                folder.claim(parts.loaded.tree)
                folder.write_initial(parts.x0)
        with together(comm):
            store = parts.store(folder.stores, comm.rank, life, _own(owner, comm))
        server = parts.algorithm.init_server(parts.x0)
        return _live(parts, folder, comm, owner, store, life, signals, server, None)


def resume(root: Path) -> Result:
    """Take up a run again from its last checkpoint, on any number of ranks; collective.

    Raises:
        JobError: the directory holds no run, or one that is alive.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: see ``hpcfl.engine.play``.
    """
    folder = RunDir(root)
    folder.require()
    loaded = load(folder.job)
    with folder, group(_connect(loaded)) as comm:
        signals = Signals().listen()  # after MPI's start, which takes SIGUSR1 for itself
        life = comm.share(token_hex(4))
        with together(comm):
            parts = assemble(loaded, device_of(loaded.job, comm.local_rank))
            owner = owners([len(own) for own in parts.rows], comm.size)
        with together(comm):
            if comm.rank == 0:
                folder.lock()
                newest = _newest(folder)
                sweep(folder.checkpoints)
                kept = [checkpoint.folder for checkpoint in committed(folder.checkpoints)]
                row_tables.sweep(folder.stores, row_tables.named(kept), life)
                cut(folder.log, newest.log_bytes)
        with together(comm):
            newest = _newest(folder)
            server = read_server(newest, parts.schema.server, parts.device)
            parts = replace(parts, x0=folder.read_initial(parts.x0).to(parts.device))
            store = parts.store(folder.stores, comm.rank, life, _own(owner, comm))
            table = row_tables.Table.load(newest.folder, folder.stores)
            if table.ranks != newest.ranks:
                raise StoreError(
                    f"{newest.folder}: row tables of {table.ranks} ranks, expected {newest.ranks}"
                )
            take = store.adopt if newest.ranks == comm.size else store.rehome
            take(table)
            store.keep([checkpoint.folder for checkpoint in committed(folder.checkpoints)])
        return _live(parts, folder, comm, owner, store, life, signals, server, newest)


class _Desk:
    """The engine's surroundings: evaluation, log, progress and checkpoints of one rank."""

    def __init__(
        self,
        parts: Parts,
        folder: RunDir,
        comm: Comm,
        store: ClientStore,
        life: str,
        evaluation: Evaluation,
        progress: Progress,
    ) -> None:
        self._parts, self._folder, self._comm, self._store = parts, folder, comm, store
        self._life, self._evaluation, self._progress = life, evaluation, progress
        self._log = RunLog(folder.log if comm.rank == 0 else None)

    def evaluate(self, x: Vector) -> Record:
        """Collective: the scores of ``x``, and the time they took."""
        began = perf_counter()
        scores: Record = {**self._evaluation.scores(x)}
        scores["evaluate_s"] = perf_counter() - began
        return scores

    def record(self, record: Record) -> None:
        """Append to the log, and tell the person who watches."""
        if self._comm.rank == 0:
            self._log.write(record)
            self._progress.round(record)

    def save(self, round: int, server: Any) -> None:
        """Collective: commit a checkpoint.

        Raises:
            RankError: the ranks' models differ.
        """
        print_ = float(fingerprint(server))
        low, high = self._comm.max(np.array([-print_, print_]))
        if -low != high:
            raise RankError(
                f"round {round}: the ranks' models differ (checksums {-low:.0f} to {high:.0f}); no "
                "checkpoint was written. Are all ranks on one processor model and one torch?"
            )
        folder = self._folder
        kept = save(
            folder.checkpoints,
            round,
            server,
            self._store,
            self._comm,
            log_bytes=self._log.sync(),
            keep=self._parts.job.checkpoint.keep,
        )
        if self._comm.rank == 0:
            named = row_tables.named(checkpoint.folder for checkpoint in kept)
            row_tables.sweep(folder.stores, named, self._life)

    def close(self) -> None:
        """Close what is open."""
        self._log.close()
        self._store.close()


def _live(
    parts: Parts,
    folder: RunDir,
    comm: Comm,
    owner: NDArray[np.int64],
    store: ClientStore,
    life: str,
    signals: Signals,
    server: Any,
    newest: Checkpoint | None,
) -> Result:
    """Collective: play from a server and its stores to the end."""
    job, done = parts.job, newest.round if newest else 0
    if comm.rank == 0:
        folder.note_start(
            {"life": life, "round": done, "ranks": comm.size, "device": parts.device.type}
        )
    gradient = parts.gradient()
    evaluation = Evaluation(gradient, parts.tests(), parts.dataset.loss, comm)
    population = parts.population()
    with open_progress(folder.root.name, job.rounds, done, comm.rank) as progress:
        progress.note(_opening(parts, comm, folder, done))
        desk = _Desk(parts, folder, comm, store, life, evaluation, progress)
        run = Run(
            algorithm=parts.algorithm,
            rounds=job.rounds,
            draw=lambda t: job.cohort.draw(t, len(population), job.seed),
            rate=job.local.rate,
            weights=client_weights(job, parts.rows),
            owner=owner,
            population=population,
            executor=parts.executor(gradient),
            store=store,
            comm=comm,
            reduction=parts.reduction(comm),
            surveys=parts.surveys(comm),
            schema=parts.schema,
            traffic=traffic(parts.algorithm, parts.schema),
            x0=parts.x0,
            fresh=parts.fresh,
            evaluation=job.evaluate.due,
            checkpoint=job.checkpoint.due,
            minutes=job.checkpoint.minutes,
            signals=signals,
            desk=desk,
        )
        with closing(desk):
            if newest is None:
                desk.save(0, server)
            server = play(run, server, done)
    log = tuple(json.loads(line) for line in folder.log.read_text().splitlines())
    return Result(folder.root, job.rounds, server.x.cpu(), log)


def _connect(loaded: Loaded) -> Comm:
    launch = detect(os.environ)
    device = device_of(loaded.job, launch.local_rank or 0)
    return connect(loaded.job.comm.backend, device.type, loaded.job.comm.timeout_s)


def _own(owner: NDArray[np.int64], comm: Comm) -> Sequence[int]:
    own: list[int] = np.flatnonzero(owner == comm.rank).tolist()
    return own


def _newest(folder: RunDir) -> Checkpoint:
    found = committed(folder.checkpoints)
    if not found:
        raise StoreError(
            f"{folder.checkpoints}: holds no checkpoint; remove {folder.root} and run the job anew"
        )
    return found[-1]


def _opening(parts: Parts, comm: Comm, folder: RunDir, done: int) -> str:
    """One line: what is about to run."""
    went = f", from round {done}" if done else ""
    left = f"; model.init left {', '.join(parts.skipped)} at random" if parts.skipped else ""
    return (
        f"{parts.loaded.tree['algorithm']['name']}: {len(parts.rows)} clients, "
        f"{parts.x0.numel()} parameters, {comm.size} rank(s) by {type(comm).__name__.lower()} on "
        f"{parts.device.type}, {parts.job.precision}, into {folder.root}{went}{left}"
    )
