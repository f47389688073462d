"""What one start of a run holds on one rank: its parts, its store, its desk."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.checkpoint.best import Best
from hpcfl.checkpoint.format import fingerprint
from hpcfl.checkpoint.writer import PendingCheckpoint, begin
from hpcfl.cohort.assignment import assign_owners
from hpcfl.comm.failure import raise_collectively
from hpcfl.comm.watched import Watched
from hpcfl.data.fingerprints import Digests
from hpcfl.errors import DiskError, RankError, StoreError
from hpcfl.evaluation import Evaluation
from hpcfl.io.progress import Progress
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import OF_RANKS, LogPosition, RunLog
from hpcfl.run_dir.manifest import Checkpoint
from hpcfl.run_dir.tensorboard import Events
from hpcfl.runner.components import Components
from hpcfl.runner.disk_budget import require, room
from hpcfl.runner.schedule import ScheduleUsage, coming, play_cohorts
from hpcfl.store import row_table as row_tables
from hpcfl.store.base import ClientStore
from hpcfl.types import Record, Vector


class RankSession:
    """What one start of the program holds on one rank."""

    def __init__(self, parts: Components, folder: RunDir, comm: Watched, inputs: Digests) -> None:
        self.parts, self.folder, self.comm, self.inputs = parts, folder, comm, inputs
        self.name = comm.bcast(token_hex(4))
        with raise_collectively(comm):
            self.owner: NDArray[np.int64] = assign_owners(
                [len(own) for own in parts.rows], comm.size
            )
        self._store: ClientStore | None = None
        self.best = Best(folder.best)
        self.run_files: Mapping[str, int] = {}
        """The crc32 of the files of the folder that no round changes; on rank 0."""
        self.log: RunLog | None = None
        """The log, once it is open."""
        self._saving: PendingCheckpoint | None = None
        self._behind = ThreadPoolExecutor(1, "checkpoint")

    @property
    def store(self) -> ClientStore:
        """The home of this rank's client states, once it is open."""
        if self._store is None:
            raise RuntimeError("the store is not open yet")
        return self._store

    @cached_property
    def _played(self) -> ScheduleUsage:
        """The cohorts of all rounds."""
        return play_cohorts(self.parts, self.comm.size)

    def require_room(self) -> None:
        """Refuse a disk that is too small for all that the run will keep; called on rank 0.

        Raises:
            JobError: it is.
        """
        require(room(self.parts, self._played), self.folder.root)

    def open_store(self) -> None:
        """Collective: open the home of this rank's client states."""
        own = np.flatnonzero(self.owner == self.comm.rank).tolist()
        with raise_collectively(self.comm):
            self._store = self.parts.store(self.folder.stores, self.comm.rank, self.name, own)

    def reserve(self) -> None:
        """Allocate the rows of all clients that this rank will see.

        Raises:
            DiskError: the disk, or a quota, is too small.
        """
        self.store.ensure_rows([int(part.rows[self.comm.rank]) for part in self._played.states])

    def take_over(self, newest: Checkpoint, kept: list[Path]) -> None:
        """Let the store go on from a checkpoint, with room for the rounds to come."""
        table = row_tables.Table.load(newest.folder, self.folder.stores)
        if table.ranks != newest.ranks:
            raise StoreError(
                f"{newest.folder}: row tables of {table.ranks} ranks, expected {newest.ranks}"
            )
        if newest.ranks == self.comm.size:
            self.store.adopt(table)
            self.reserve()
        else:
            self.reserve()
            self.store.rehome(table)
        self.store.retain(kept)

    def save(
        self,
        round: int,
        server: Any,
        kept: Mapping[str, Tensor],
        log: LogPosition,
        sync: Callable[[], None],
    ) -> None:
        """Collective: begin a checkpoint; one that is on its way is committed first.

        Args:
            round: rounds completed.
            server: the algorithm's.
            kept: what else the coming rounds need.
            log: what stands in the log.
            sync: brings the log to the disk; called on another thread.

        Raises:
            RankError: the ranks' models differ.
            LostFileError: a file or folder of the run is gone.
        """
        self.settle(round)
        with raise_collectively(self.comm):
            self.require_in_place()
        self.comm.pulse.phase = "checkpointing"
        mark = float(fingerprint(server.x, *self.parts.buffers.values()))
        low, high = self.comm.allreduce_max(np.array([-mark, mark]))
        if -low != high:
            error = RankError(
                f"round {round}: the ranks' models differ (checksums {-low:.0f} to {high:.0f}), so "
                "no checkpoint was written; are all ranks on one processor model and one torch, "
                "and does a class of your own draw at random or keep something between calls?"
            )
            error.collective = True
            raise error
        self._saving = begin(
            self.folder.checkpoints,
            round,
            server,
            kept,
            self.store,
            self.comm,
            self._behind,
            job=self.folder.mark,
            inputs=self.inputs,
            log=log,
            run_files=self.run_files,
            sync=sync,
            best=self.best.content,
        )

    @property
    def pending(self) -> tuple[bool, bool]:
        """Whether this rank still writes a checkpoint, and whether rounds must wait for it."""
        if self._saving is None:
            return False, False
        return not self._saving.ready, self.store.low_on_rows

    def settle(self, round: int) -> None:
        """Collective: commit the checkpoint that is on its way, if one is.

        Args:
            round: rounds completed by now.

        Raises:
            LostFileError: a file or folder of the run is gone; the last checkpoint is kept.
            DiskError: on this rank alone: the disk is full or fails.
            StoreError: on this rank alone: a file cannot be written for another reason.
        """
        if self._saving is None:
            return
        checkpoint, saved = self.parts.job.checkpoint, self._saving.round
        folders = self._saving.commit(self.store, self.comm, checkpoint.keep, self.require_in_place)
        self._saving = None
        if saved and not checkpoint.due(saved, self.parts.job.rounds):  # its rows come on top
            self.store.ensure_free_rows(coming(self.parts, self.owner == self.comm.rank, round))
        if self.comm.rank == 0:
            self.prune_stores(folders)

    def require_in_place(self) -> None:
        """Refuse to go on where a file or folder that a resume needs is gone; for this rank.

        Raises:
            LostFileError: it was deleted, replaced or cut.
        """
        self.folder.require_in_place()
        if self.log is not None:
            self.log.require_in_place()
        self.store.require_in_place()

    def prune_stores(self, kept: list[Path]) -> None:
        """Delete the segments of earlier lives that no checkpoint needs; on rank 0 alone."""
        row_tables.prune(self.folder.stores, row_tables.named(kept), self.name)

    def close(self) -> None:
        """Release the files of the store, if it was opened."""
        self._behind.shutdown(cancel_futures=True)
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
            f"{self.comm.backend} on {parts.device.type}, {parts.job.precision}, "
            f"into {self.folder.root}"
            + (f", from round {done}" if done else "")
            + (f"; model.init left out {', '.join(parts.skipped)}" if parts.skipped else "")
            + ("; TensorBoard reads events/ there" * parts.job.log.events)
            + ("; held-out examples are not scored: evaluate.clients=true does" * self._unscored)
        )

    @property
    def _unscored(self) -> bool:
        """Whether examples are held out for nothing."""
        asked = self.parts.job.evaluate
        return self.parts.held is not None and not (asked.clients or asked.own)


class Desk:
    """The engine's surroundings: evaluation, log, progress and checkpoints of one rank.

    Args:
        life: whose desk it is.
        evaluation: gives scores.
        progress: tells the person who watches.
        done: rounds that are in the log.
    """

    def __init__(
        self, life: RankSession, evaluation: Evaluation, progress: Progress, done: int
    ) -> None:
        self._life, self._evaluation, self._progress = life, evaluation, progress
        first = life.comm.rank == 0
        self._log = life.log = RunLog(life.folder.log if first else None)
        events = first and done < life.parts.job.rounds and life.parts.job.log.events
        self._events = Events(life.folder.events, done) if events else None

    def begin(self, round: int) -> None:
        """Take note that a round begins."""
        pulse = self._life.comm.pulse
        pulse.round, pulse.phase = round, "training"

    def evaluate(self, round: int, x: Vector) -> Record:
        """Collective: the scores of ``x``; the best model is kept."""
        self._life.comm.pulse.phase = "evaluating"
        scores = self._evaluation.scores(x)
        if self._life.parts.job.evaluate.best and self._life.comm.rank == 0:
            self._life.best.offer(round, scores, x)
        return scores

    def record(self, record: Record, busy: Sequence[float]) -> None:
        """Append to the log, and tell the person who watches."""
        if self._life.comm.rank == 0:
            self._log.write({**record, OF_RANKS: busy} if busy else record)
            if self._events:
                self._events.round(record)
            self._progress.round(record)

    def save(self, round: int, server: Any, kept: Mapping[str, Tensor]) -> None:
        """Collective: begin a checkpoint; one that is on its way is committed first."""
        if self._events:
            self._events.flush()
        self._life.save(round, server, kept, self._log.extent, self._log.sync)

    @property
    def pending(self) -> tuple[bool, bool]:
        """Whether this rank still writes a checkpoint, and whether rounds must wait for it."""
        return self._life.pending

    def settle(self, round: int) -> None:
        """Collective: commit the checkpoint that is on its way, if one is."""
        self._life.settle(round)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the log, and the events; what ended the rounds is told, not what follows from it.

        Raises:
            DiskError, StoreError: a file cannot be written, and nothing has failed before.
        """
        failures = []
        closes = [self._log.close, *([self._events.close] if self._events else [])]
        for close in closes:
            try:
                close()
            except (DiskError, StoreError) as e:
                failures.append(e)
        if failures and error is None:
            raise failures[0]
