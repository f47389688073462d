"""One start of a run on one rank: its store, log and checkpoints.

A ``RankSession`` is opened when the job's components are built, and closed when this start ends.
The engine calls it between rounds: it implements ``hpcfl.engine.run.RunHooks``.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from hpcfl.checkpoint.best import Best
from hpcfl.checkpoint.format import fingerprint
from hpcfl.checkpoint.writer import CheckpointContents, PendingCheckpoint, begin
from hpcfl.cohort.assignment import assign_owners
from hpcfl.comm.failure import raise_collectively
from hpcfl.comm.watched import WatchedComm
from hpcfl.data.fingerprints import Digests
from hpcfl.engine.callbacks import Callbacks, RoundModel, RunStart
from hpcfl.engine.run import CheckpointState
from hpcfl.errors import DiskError, HookError, RankError, StoreError
from hpcfl.evaluation import Evaluation
from hpcfl.io.progress import Progress
from hpcfl.models.flat_vector import frozen_note
from hpcfl.run_dir.history import outcome_of
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import NOTHING, OF_RANKS, LogPosition, RunLog
from hpcfl.run_dir.manifest import Checkpoint
from hpcfl.setup.components import Components
from hpcfl.store import row_table as row_tables
from hpcfl.store.base import ClientStore
from hpcfl.types import IntArray, Record, Vector
from hpcfl.user_code.names import short_name


class _Outputs(NamedTuple):
    """Log, events and progress, which rank 0 writes, and the evaluation of every rank."""

    log: RunLog
    callbacks: Callbacks
    progress: Progress
    evaluation: Evaluation

    def close(self, status: str) -> list[Exception]:
        """Close all, and return the errors."""
        failures: list[Exception] = []
        try:
            self.log.close()
        except (DiskError, StoreError) as e:
            failures.append(e)
        return [*failures, *self.callbacks.end(status)]


class RankSession:
    """One start of a run on one rank: its store, log and checkpoints.

    Args:
        components: of the job.
        folder: the run directory.
        comm: the group of ranks.
        inputs: the digests of the job's inputs.
        callbacks: the user's; none but on rank 0.
    """

    def __init__(
        self,
        components: Components,
        folder: RunDir,
        comm: WatchedComm,
        inputs: Digests,
        callbacks: Callbacks,
    ) -> None:
        self.components, self.folder, self.comm, self.inputs = components, folder, comm, inputs
        self._callbacks = callbacks
        self.session_id = comm.bcast(token_hex(4))
        """Random, the same on every rank; it names segments and the entry in the history."""
        with raise_collectively(comm):
            self.owner: IntArray = assign_owners([len(own) for own in components.rows], comm.size)
        self.best = Best()
        self.run_files: Mapping[str, int] = {}
        """The crc32 of the files of the folder that no round changes; on rank 0."""
        self._earlier_sessions: Collection[str] = ()
        self._store: ClientStore | None = None
        self._outputs: _Outputs | None = None
        self._pending: PendingCheckpoint | None = None
        self._background = ThreadPoolExecutor(1, "checkpoint")

    # The store of client states.

    @property
    def store(self) -> ClientStore:
        """The store of this rank's client states, once it is open."""
        if self._store is None:
            raise RuntimeError("the store is not open yet")
        return self._store

    @property
    def my_clients(self) -> list[int]:
        """The clients whose states this rank keeps."""
        owned: list[int] = np.flatnonzero(self.owner == self.comm.rank).tolist()
        return owned

    def open_store(self) -> None:
        """Collective: open the store of this rank's client states."""
        # Absolute, as all paths that threads use: a callback may be in another folder meanwhile.
        stores = self.folder.stores.absolute()
        with raise_collectively(self.comm):
            self._store = self.components.store(
                stores, self.comm.rank, self.session_id, self.my_clients
            )

    def restore_states(self, checkpoint: Checkpoint, retained_folders: list[Path]) -> None:
        """Restore the states of a checkpoint.

        Args:
            checkpoint: which one.
            retained_folders: those of the checkpoints whose states must not be changed.
        """
        table = row_tables.Table.load(checkpoint.folder, self.folder.stores)
        if table.ranks != checkpoint.ranks:
            raise StoreError(
                f"{checkpoint.folder}: row tables of {table.ranks} ranks, expected "
                f"{checkpoint.ranks}"
            )
        self.store.restore(table, self.comm.size)
        self.store.retain(retained_folders)

    def record_opening(self) -> None:
        """Add this start to the history, before it writes client states; on rank 0 alone.

        Raises:
            StoreError: the history is damaged, or cannot be written.
        """
        self._earlier_sessions = self.folder.open_session(self.session_id)

    def prune_stores(self, retained_folders: list[Path]) -> None:
        """Delete the segments of earlier starts that no checkpoint needs; on rank 0 alone."""
        keep = row_tables.named(retained_folders)
        row_tables.prune(self.folder.stores, keep, self._earlier_sessions)

    def require_in_place(self) -> None:
        """Check, on this rank, that the files and folders that a resume needs are still there.

        Raises:
            LostFileError: it was deleted, replaced or cut.
        """
        self.folder.require_in_place()
        if self._outputs:
            self._outputs.log.require_in_place()
        self.store.require_in_place()

    # The log and callbacks.

    @contextmanager
    def recording(self, evaluation: Evaluation, progress: Progress) -> Iterator[None]:
        """Open the log and callbacks for the block's rounds.

        Args:
            evaluation: gives scores.
            progress: prints lines for the user.

        Raises:
            DiskError, StoreError: a file cannot be closed; not raised if the rounds failed before.
            HookError: a callback failed at the end; likewise.
        """
        log = RunLog(self.folder.log if self.comm.rank == 0 else None)
        self._outputs = _Outputs(log, self._callbacks, progress, evaluation)
        try:
            yield
        except BaseException as e:
            # The error that ended the rounds is raised, not one of closing.
            for failure in self._outputs.close(outcome_of(e, self.comm.progress.round).ending):
                if isinstance(failure, HookError):
                    progress.note(f"warning: {failure}")
            raise
        failures = self._outputs.close("finished")
        if failures:
            raise failures[0]

    def start_callbacks(self, done: int) -> None:
        """Tell the callbacks that the run starts, once its start is in the history.

        Args:
            done: rounds completed.

        Raises:
            HookError, DiskError: one of them fails.
        """
        components = self.components
        root, rounds = self.folder.root.absolute(), components.job.rounds
        self._callbacks.start(RunStart(root, components.loaded.tree, done, rounds, self.comm.size))

    @property
    def _open_outputs(self) -> _Outputs:
        """The outputs, once ``recording`` has opened them."""
        if self._outputs is None:
            raise RuntimeError("the log is not open yet")
        return self._outputs

    # Called by the engine: see ``RunHooks``.

    def begin_round(self, round: int) -> None:
        """Tell the other ranks' watchdogs that a round begins."""
        self.comm.progress.round, self.comm.progress.phase = round, "training"

    def evaluate(self, round: int, x: Vector) -> Record:
        """Collective: the scores of ``x``; the best model is kept."""
        self.comm.progress.phase = "evaluating"
        scores = self._open_outputs.evaluation.scores(x)
        if self.components.job.evaluate.best and self.comm.rank == 0:
            self.best.offer(round, scores, x)
        return scores

    def record(self, record: Record, busy: Sequence[float], x: Vector) -> None:
        """Append to the log, show the round's progress, and call the callbacks.

        Raises:
            DiskError: the disk is full or fails.
            HookError: a callback failed.
        """
        if self.comm.rank != 0:
            return
        log, callbacks, progress, _ = self._open_outputs
        log.write({**record, OF_RANKS: busy} if busy else record)
        progress.round(record)
        if callbacks:
            self.comm.progress.phase = "in a callback"
            callbacks.round(record, RoundModel(x, self.components.model))

    def begin_checkpoint(
        self, round: int, server: Any, extra_tensors: Mapping[str, Tensor]
    ) -> None:
        """Collective: begin a checkpoint; a pending one is committed first.

        Args:
            round: rounds completed.
            server: the algorithm's.
            extra_tensors: other tensors that the coming rounds need.

        Raises:
            RankError: the ranks' models differ.
            LostFileError: a file or folder of the run is gone.
        """
        self.commit_checkpoint(round)
        with raise_collectively(self.comm):
            self.require_in_place()
        self.comm.progress.phase = "checkpointing"
        self._require_same_models(round, server.x)
        log, sync = self._log_position()
        contents = CheckpointContents(
            round=round,
            server=server,
            extra_tensors=extra_tensors,
            job=self.folder.job_fingerprint,
            inputs=self.inputs,
            log=log,
            run_files=self.run_files,
            best=self.best.content,
        )
        # Absolute, for the thread that writes the files.
        root = self.folder.checkpoints.absolute()
        self._pending = begin(root, contents, self.store, self.comm, self._background, sync)

    @property
    def checkpoint_state(self) -> CheckpointState:
        """Whether this rank still writes a checkpoint, and whether rounds must wait for it."""
        if self._pending is None:
            return CheckpointState(writing=False)
        return CheckpointState(not self._pending.ready)

    def commit_checkpoint(self, round: int) -> None:
        """Collective: commit the pending checkpoint, if there is one.

        Args:
            round: rounds completed by now.

        Raises:
            LostFileError: a file or folder of the run is gone; the last checkpoint is kept.
            DiskError: on this rank alone: the disk is full or fails.
            StoreError: on this rank alone: a file cannot be written for another reason.
        """
        if self._pending is None:
            return
        folders = self._pending.commit(
            self.store, self.comm, self.components.job.checkpoint.keep, self.require_in_place
        )
        self._pending = None
        if self.comm.rank == 0:
            self.prune_stores(folders)

    def close(self) -> None:
        """Release the files of the store, if it was opened."""
        self._background.shutdown(cancel_futures=True)
        if self._store is not None:
            self._store.close()

    def describe(self, done: int) -> str:
        """One line about the job, for the beginning of a start."""
        components, job = self.components, self.components.job
        algorithm = dict(components.loaded.tree["algorithm"])
        name = short_name(algorithm.pop("name"))
        settings = ", ".join(f"{key} {json.dumps(value)}" for key, value in algorithm.items())
        unscored = components.split.held_out is not None and not (
            job.evaluate.clients or job.evaluate.local_models
        )
        parts = [
            f"{name} ({settings}): {len(components.rows)} clients, "
            f"{components.x0.numel()} parameters{frozen_note(components.model)}, "
            f"{self.comm.size} rank(s) by {self.comm.backend} on {components.device.type}, "
            f"{job.precision}, into {self.folder.root}"
        ]
        if done:
            parts[0] += f", from round {done}"
        if components.missing_weights:
            parts.append(f"model.init left out {', '.join(components.missing_weights)}")
        if self._callbacks:
            parts.append(f"calls {', '.join(self._callbacks.names)}")
        if unscored:
            parts.append("held-out examples are not scored: evaluate.clients=true does")
        if job.evaluate.best and components.split.validation is None:
            parts.append("evaluate.best chooses on the test set: data.validation keeps nothing")
        return "; ".join(parts)

    def _require_same_models(self, round: int, x: Vector) -> None:
        """Collective: refuse a checkpoint of ranks whose models differ.

        Raises:
            RankError: they do.
        """
        crc = float(fingerprint(x, *self.components.buffers.values()))
        low, high = self.comm.allreduce_max(np.array([-crc, crc]))
        if -low != high:
            raise RankError(
                f"round {round}: the ranks' models differ (checksums {-low:.0f} to {high:.0f}), so "
                "no checkpoint was written; are all ranks on one processor model and one torch, "
                "and does a class of your own draw at random or keep something between calls?",
                collective=True,
            )

    def _log_position(self) -> tuple[LogPosition, Callable[[], None]]:
        """The log's length and checksum so far, and the function that flushes it to the disk."""
        if self._outputs is None:  # at the checkpoint of round 0, before the log is opened
            return NOTHING, lambda: None
        return self._outputs.log.position, self._outputs.log.sync
