"""What one start of a run holds on one rank: its parts, its store, its desk."""

import json
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.assemble import Parts
from hpcfl.best import Best
from hpcfl.checkpoint import Checkpoint, fingerprint, save
from hpcfl.comm.together import together
from hpcfl.comm.watched import Watched
from hpcfl.errors import RankError, StoreError
from hpcfl.evaluation import Evaluation
from hpcfl.placement import owners
from hpcfl.progress import Progress
from hpcfl.rundir import RunDir
from hpcfl.runlog import RunLog
from hpcfl.store import rows as row_tables
from hpcfl.store.base import ClientStore
from hpcfl.types import Record, Vector


class Life:
    """What one start of the program holds on one rank."""

    def __init__(self, parts: Parts, folder: RunDir, comm: Watched) -> None:
        self.parts, self.folder, self.comm = parts, folder, comm
        self.name = comm.share(token_hex(4))
        with together(comm):
            self.owner: NDArray[np.int64] = owners([len(own) for own in parts.rows], comm.size)
        self._store: ClientStore | None = None
        self.best = Best(folder.best)

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
        self.comm.pulse.phase = "checkpointing"
        mark = float(fingerprint(server.x, *self.parts.buffers.values()))
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
            best=self.best.content,
        )
        if self.comm.rank == 0:
            self.prune_stores(folders)

    def prune_stores(self, kept: list[Path]) -> None:
        """Delete the segments of earlier lives that no checkpoint needs; on rank 0 alone."""
        row_tables.prune(self.folder.stores, row_tables.named(kept), self.name)

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
            f"{self.comm.backend} on {parts.device.type}, {parts.job.precision}, "
            f"into {self.folder.root}"
            + (f", from round {done}" if done else "")
            + (f"; model.init left out {', '.join(parts.skipped)}" if parts.skipped else "")
            + ("; held-out examples are not scored: evaluate.clients=true does" * self._unscored)
        )

    @property
    def _unscored(self) -> bool:
        """Whether examples are held out for nothing."""
        asked = self.parts.job.evaluate
        return self.parts.held is not None and not (asked.clients or asked.own)


class Desk:
    """The engine's surroundings: evaluation, log, progress and checkpoints of one rank."""

    def __init__(self, life: Life, evaluation: Evaluation, progress: Progress) -> None:
        self._life, self._evaluation, self._progress = life, evaluation, progress
        self._log = RunLog(life.folder.log if life.comm.rank == 0 else None)

    def begin(self, round: int) -> None:
        """Take note that a round begins."""
        pulse = self._life.comm.pulse
        pulse.round, pulse.phase = round, "training"

    def evaluate(self, round: int, x: Vector) -> Record:
        """Collective: the scores of ``x``, and the time they took; the best model is kept."""
        self._life.comm.pulse.phase = "evaluating"
        began = perf_counter()
        scores = self._evaluation.scores(x)
        if self._life.parts.job.evaluate.best and self._life.comm.rank == 0:
            self._life.best.offer(round, scores, x)
        return {**scores, "evaluate_s": perf_counter() - began}

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
