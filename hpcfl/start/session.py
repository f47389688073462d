"""One start of a run on one rank: its components, checkpoints and outputs.

A ``RankSession`` is opened when the job's components are built, and closed when this start ends.
The engine calls it between rounds: it implements ``hpcfl.engine.run.RunHooks``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import numpy as np

from hpcfl.clients.assignment import assign_owners
from hpcfl.comm.failure import raise_collectively
from hpcfl.comm.watched import WatchedComm
from hpcfl.data.fingerprints import Digests
from hpcfl.engine.callbacks import Callbacks, RunStart
from hpcfl.engine.run import CheckpointState
from hpcfl.evaluation.clients import Clients
from hpcfl.evaluation.privacy import accountant
from hpcfl.evaluation.scores import Evaluation
from hpcfl.evaluation.stopping import StopRule
from hpcfl.local.gradient import Gradient
from hpcfl.runs.branches import Branch
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogPosition
from hpcfl.runs.requests import Request
from hpcfl.start.checkpointer import Checkpointer
from hpcfl.start.components.components import Components
from hpcfl.start.components.model_function import ModelFunction, require_of_run, require_on_ranks
from hpcfl.start.components.personal_models import PersonalModels
from hpcfl.start.components.scores import counts_own_models
from hpcfl.start.early_end import EarlyEnd, ending_settings
from hpcfl.start.outputs import Outputs
from hpcfl.start.progress import Progress
from hpcfl.start.rank_layout import Ranks
from hpcfl.types import IntArray, Record, Vector


@dataclass
class StartPoint:
    """The state that the rounds of one start begin with."""

    server: Any
    """None once ``take_server`` was called."""
    round: int
    """Rounds completed."""
    log: bytes = b""
    """The log up to there; on rank 0."""
    ended: str = ""
    """Why the run ended there, before its last round; empty if there are rounds to do."""

    def take_server(self) -> Any:
        """The server, which is no longer kept here: the rounds need its memory."""
        server, self.server = self.server, None
        return server


class RankSession:
    """One start of a run on one rank.

    Args:
        components: of the job.
        inputs: the digests of the job's inputs.
        ranks: where all ranks are.
        folder: the run directory.
        comm: the group of ranks.
        callbacks: the user's; none but on rank 0.
    """

    def __init__(
        self,
        components: Components,
        inputs: Digests,
        ranks: Ranks,
        folder: RunDir,
        comm: WatchedComm,
        callbacks: Callbacks,
    ) -> None:
        self.components, self.ranks, self.folder, self.comm = components, ranks, folder, comm
        self.inputs = inputs
        self.session_id = comm.bcast(token_hex(4))
        """Random, the same on every rank; it names segments and the entry in the history."""
        with raise_collectively(comm):
            self.owner: IntArray = assign_owners(
                [len(own) for own in components.population.rows], comm.size
            )
        self.outputs = Outputs(folder, comm, callbacks)
        keep = components.job.checkpoint.keep
        self.checkpointer = Checkpointer(folder, comm, inputs, self.outputs, keep)
        self.branches: Sequence[Branch] = ()
        """Where the run was branched from others; on rank 0."""
        self.request: Request | None = None
        """The request by which this start goes back to a round, if it does."""
        self._evaluation: Evaluation | None = None
        self._function: ModelFunction | None = None
        stop = components.job.stop
        self.stop = None if stop is None else StopRule(stop)
        self._has_callbacks = bool(comm.bcast("yes" if callbacks else ""))
        self.ended: EarlyEnd | None = None
        job, clients = components.job, len(components.population.rows)
        self.accountant = accountant(job.algorithm, job.cohort, clients, alone=job.devices is None)

    @property
    def my_clients(self) -> list[int]:
        """The clients whose states this rank keeps."""
        owned: list[int] = np.flatnonzero(self.owner == self.comm.rank).tolist()
        return owned

    def agree_on_function(
        self, components: Components, run: RunDir, recorded: bytes | None = None
    ) -> bytes:
        """Collective: check that the model is the same function on every rank and as recorded.

        Args:
            components: with the run's initial parameters and buffers.
            run: the directory of the run.
            recorded: the content of its ``function.json``, if it has one.

        Returns:
            What to record of a run that has none.

        Raises:
            JobError, StoreError: see ``hpcfl.start.components.model_function``.
        """
        if self._function is None:  # else it is that of the run that was copied
            with raise_collectively(self.comm):
                own = components.function()
            require_on_ranks(own, components.loaded, self.comm)
            self.ranks = self.ranks.with_notes(*own.notes)
            self._function = own
        with raise_collectively(self.comm):
            if self.comm.rank == 0 and recorded is not None:
                require_of_run(self._function, recorded, run.function)
        return self._function.model_dump_json().encode()

    def open_store(self) -> None:
        """Collective: open the store of this rank's client states."""
        rank, clients = self.comm.rank, self.my_clients
        self.checkpointer.open_store(
            lambda root: self.components.store(root, rank, self.session_id, clients)
        )

    @contextmanager
    def recording(self, gradient: Gradient, progress: Progress, log: LogPosition) -> Iterator[None]:
        """Open the evaluation and the outputs for the block's rounds.

        Args:
            gradient: of the model's loss.
            progress: prints lines for the user.
            log: the end of the log.

        Raises:
            DiskError, StoreError, HookError: see ``Outputs.opened``.
        """
        parts, population = self.components, self.components.population
        personal = PersonalModels(parts, self.checkpointer.store, gradient)
        clients = Clients(
            population.clients,
            self.my_clients,
            population.weights,
            personal.last,
            personal.scored,
        )
        self._evaluation = Evaluation(
            parts.job.evaluate,
            gradient,
            population.dataset,
            {"test": population.tests(), "validation": population.validation()},
            clients,
            self.comm,
            self.outputs.write_clients,
        )
        with self.outputs.opened(progress, log):
            yield

    def start_callbacks(self, done: int) -> None:
        """Tell the callbacks that the run starts, once its start is in the history.

        Args:
            done: rounds completed.

        Raises:
            HookError, DiskError: one of them fails.
        """
        root, loaded = self.folder.root.absolute(), self.components.loaded
        start = RunStart(root, loaded.tree, done, loaded.job.rounds, self.comm.size)
        self.outputs.callbacks.start(start)

    # Called by the engine: see ``RunHooks``.

    def begin_round(self, round: int) -> None:
        """Tell the other ranks' watchdogs that a round begins."""
        self.comm.progress.round, self.comm.progress.phase = round, "training"

    def evaluate(self, round: int, x: Vector) -> Record:
        """Collective: the scores of ``x``; the best model is kept."""
        if self._evaluation is None:
            raise RuntimeError("the evaluation is not open yet")
        self.comm.progress.phase = "evaluating"
        scores = self._evaluation.scores(x, round)
        if self.stop is not None:
            self.stop.offer(round, scores)
        if self.components.job.evaluate.best and self.comm.rank == 0:
            personal = counts_own_models(self.components)
            self.checkpointer.best.offer(round, scores, x, personal=personal)
        if self.accountant is None or self.accountant.why_none:
            return scores
        return {**scores, "epsilon": self.accountant.epsilon(round)}

    def record(self, record: Record, busy: Sequence[float], x: Vector) -> None:
        """Write a round to the log, the progress and the callbacks, see ``Outputs.record``."""
        self.outputs.record(record, busy, x, self.components.model.module)

    def ends(self, round: int) -> bool:
        """Collective: whether the scores or a callback end the run here."""
        reason = "" if self.stop is None else self.stop.reason  # the same on every rank
        if not reason and self._has_callbacks:
            reason = self.comm.bcast(self.outputs.callbacks.reason)
        self.ended = EarlyEnd(round, reason) if reason else None
        return self.ended is not None

    def begin_checkpoint(self, round: int, server: Any) -> None:
        """Collective: begin a checkpoint, see ``Checkpointer.begin``."""
        parts, ended = self.components, dict[str, str]()
        if self.ended is not None:
            ended = {
                "reason": self.ended.reason,
                "by": ending_settings(parts.loaded),
            }
        self.checkpointer.begin(round, server, parts.model.buffers, ended)

    @property
    def checkpoint_state(self) -> CheckpointState:
        """Whether this rank still writes a checkpoint, and whether rounds must wait for it."""
        return self.checkpointer.state

    def commit_checkpoint(self, round: int) -> None:
        """Collective: commit the pending checkpoint, see ``Checkpointer.commit``."""
        self.checkpointer.commit()

    def close(self) -> None:
        """Release the files of the store, if it was opened."""
        self.checkpointer.close()
