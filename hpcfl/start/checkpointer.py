"""Begin, commit, restore and prune the checkpoints of one start of a run, on one rank."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hpcfl.checkpoint.best import Best
from hpcfl.checkpoint.format import fingerprint
from hpcfl.checkpoint.writer import CheckpointContents, PendingCheckpoint, begin
from hpcfl.comm.failure import from_rank_0, raise_collectively
from hpcfl.comm.watched import WatchedComm
from hpcfl.data.fingerprints import Digests
from hpcfl.engine.round import change_counts
from hpcfl.engine.run import CheckpointState
from hpcfl.errors import HpcflError, RankError
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import delete_older
from hpcfl.start.outputs import Outputs
from hpcfl.store import row_table as row_tables
from hpcfl.store.base import ClientStore
from hpcfl.store.row_table import Table


class Checkpointer:
    """The checkpoints of one start, and the store of this rank's client states.

    Args:
        folder: the run directory.
        comm: the group of ranks.
        inputs: the digests of the job's inputs.
        outputs: whose log a checkpoint names.
        keep: how many checkpoints to keep.
    """

    def __init__(
        self, folder: RunDir, comm: WatchedComm, inputs: Digests, outputs: Outputs, keep: int
    ) -> None:
        self._folder, self._comm, self._inputs, self._keep = folder, comm, inputs, keep
        self._outputs = outputs
        self.best = Best()
        self.run_files: Mapping[str, int] = {}
        """The crc32 of the files of the folder that no round changes; on rank 0."""
        self._earlier_sessions: Collection[str] = ()
        self._segments: dict[str, set[str]] = {}  # that each kept checkpoint names, by its folder
        self._store: ClientStore | None = None
        self._pending: PendingCheckpoint | None = None
        self._change_counts: list[int] = []  # of its server, when it was begun
        self._background = ThreadPoolExecutor(1, "checkpoint")

    @property
    def store(self) -> ClientStore:
        """The store of this rank's client states, once it is open."""
        if self._store is None:
            raise RuntimeError("the store is not open yet")
        return self._store

    def open_store(self, make: Callable[[Path], ClientStore]) -> None:
        """Collective: open the store of this rank's client states, which ``make`` makes."""
        # Absolute, as all paths that threads use: a callback may be in another folder meanwhile.
        with raise_collectively(self._comm):
            self._store = make(self._folder.stores.absolute())

    def record_opening(self, session_id: str) -> None:
        """Add this start to the history, before it writes client states; on rank 0 alone.

        Raises:
            StoreError: the history is damaged, or cannot be written.
        """
        self._earlier_sessions = self._folder.open_session(session_id)

    def keep_segments(self, folder: Path, tables: Mapping[str, bytes]) -> None:
        """Keep the segments that a checkpoint names until a commit deletes it; on rank 0 alone.

        Args:
            folder: the checkpoint's.
            tables: the files of its row tables, by name.
        """
        self._segments[folder.name] = row_tables.segments_in(folder, tables)

    def restore(self, table: Table, older: Sequence[Table]) -> None:
        """Restore the states of a checkpoint.

        Args:
            table: the checkpoint's.
            older: of this rank, those of older checkpoints, whose states must not be changed.
        """
        self.store.restore(table, self._comm.size, older)
        self.store.retain([each.folder for each in (*older, table)])

    def prune(self) -> None:
        """Delete the checkpoints that are too many, and what they alone need; on rank 0 alone.

        Of a run that has ended: a commit does the same, and frees the rows of what it deletes.
        """
        kept = delete_older(self._folder.checkpoints, self._keep)
        self._segments = {name: self._segments[name] for name in kept}
        self.prune_stores()

    def prune_stores(self) -> None:
        """Delete the segments of earlier starts that no checkpoint needs; on rank 0 alone."""
        keep = {name for names in self._segments.values() for name in names}
        row_tables.prune(self._folder.stores, keep, self._earlier_sessions)

    def require_in_place(self) -> None:
        """Check, on this rank, that the files and folders that a resume needs are still there.

        Raises:
            LostFileError: it was deleted, replaced or cut.
        """
        self._folder.require_in_place()
        self._outputs.require_in_place()
        self.store.require_in_place()

    def begin(
        self,
        round: int,
        server: Any,
        buffers: Mapping[str, Tensor],
        ended: Mapping[str, str],
    ) -> None:
        """Collective: begin a checkpoint; a pending one is committed first.

        Args:
            round: rounds completed.
            server: the algorithm's.
            buffers: the model's, which no round changes.
            ended: why the run ends here; empty if it goes on.

        Raises:
            RankError: the ranks' models differ.
            LostFileError: a file or folder of the run is gone.
        """
        self.commit()
        with raise_collectively(self._comm):
            self.require_in_place()
        self._comm.progress.phase = "checkpointing"
        self._require_same_models(round, [server.x, *buffers.values()])
        contents = CheckpointContents(
            round=round,
            server=server,
            job=self._folder.job_fingerprint,
            inputs=self._inputs,
            log=self._outputs.log_position,
            table_lines=self._outputs.table_lines,
            run_files=self.run_files,
            ended=ended,
            best=self.best.model,
        )
        self._change_counts = change_counts(server)
        # Absolute, for the thread that writes the files.
        root, sync = self._folder.checkpoints.absolute(), self._outputs.sync
        self._pending = begin(root, contents, self.store, self._comm, self._background, sync)

    @property
    def state(self) -> CheckpointState:
        """Whether this rank still writes a checkpoint, and whether rounds must wait for it."""
        if self._pending is None:
            return CheckpointState(writing=False)
        return CheckpointState(not self._pending.ready)

    def commit(self) -> None:
        """Collective: commit the pending checkpoint, if there is one.

        Raises:
            LostFileError: a file or folder of the run is gone; the last checkpoint is kept.
            DiskError: on this rank alone: the disk is full or fails.
            StoreError: on this rank alone: a file cannot be written for another reason.
        """
        pending, self._pending = self._pending, None  # one that fails is not tried again
        if pending is None:
            return
        # The rows and segments of the oldest checkpoint are free only once its manifest is deleted,
        # which a commit does after that of the new one: a kill at any moment leaves one to resume.
        done = pending.commit(self.store, self._comm, self._keep, self.require_in_place)
        known = {**self._segments, pending.folder.name: done.segments}
        self._segments = {at.name: known[at.name] for at in done.kept if at.name in known}
        if self._comm.rank == 0:
            self.prune_stores()

    def commit_after(self, error: Exception) -> None:
        """Commit the pending checkpoint, of an earlier round, so that a resume can start there.

        Collective after an error that every rank raises.  Does nothing where this rank alone
        failed: the others do not come to commit it.

        Args:
            error: which ends the rounds.

        Raises:
            LostFileError, DiskError, StoreError: see ``commit``.
        """
        pending = self._pending
        everywhere = isinstance(error, HpcflError) and error.collective
        if pending is None or not (everywhere or self._comm.size == 1):
            return
        # Code of the user's may have changed the server in place while it was being written.
        if from_rank_0(
            self._comm, lambda: change_counts(pending.contents.server) == self._change_counts
        ):
            self.commit()

    def close(self) -> None:
        """Release the files of the store, if it was opened."""
        self._background.shutdown(cancel_futures=True)
        if self._store is not None:
            self._store.close()

    def _require_same_models(self, round: int, model: list[Tensor]) -> None:
        """Collective: refuse a checkpoint of ranks whose models differ.

        Raises:
            RankError: they do.
        """
        crc = float(fingerprint(*model))
        low, high = self._comm.allreduce_max(np.array([-crc, crc]))
        if -low != high:
            raise RankError(
                f"round {round}: the ranks' models differ (checksums {-low:.0f} to {high:.0f}), so "
                "no checkpoint was written; are all ranks on one processor model and one torch, "
                "and does a class of your own draw at random or keep something between calls?",
                collective=True,
            )
