"""Run the rounds of one start, and record in the history how it began and ended."""

import json

import numpy as np

from hpcfl.engine.loop import run_rounds as run_engine
from hpcfl.errors import StoreError
from hpcfl.io.signals import Signals, stopped
from hpcfl.runs.log import NOTHING, LogReader
from hpcfl.runs.log_keys import SIMULATED
from hpcfl.runs.run_score import score_key
from hpcfl.start.announce import announce
from hpcfl.start.build_run import build_run
from hpcfl.start.components.scores import counts_own_models
from hpcfl.start.device import keep_freed_memory
from hpcfl.start.early_end import EarlyEnd
from hpcfl.start.progress import open_progress
from hpcfl.start.record_start import (
    record_outcomes,
    warn_of_divergence,
)
from hpcfl.start.session import RankSession, StartPoint
from hpcfl.types import Vector


def run_rounds(session: RankSession, point: StartPoint, signals: Signals) -> Vector:
    """Collective: run the rounds from ``point`` to the end; the final model, on the CPU.

    Raises:
        DivergedError, Stopped: see ``hpcfl.engine.loop.run_rounds``.
        StoreError: a client's state cannot be read or written.
    """
    components = session.components = session.components.for_rounds()
    comm, checkpointer = session.comm, session.checkpointer
    job, done = components.job, point.round
    reason = point.ended
    if session.stop is not None and done < job.rounds:
        session.stop.restore(_logged_before(session, point, session.stop.metric), done)
        reason = reason or session.stop.reason
    session.ended = EarlyEnd(done, reason) if reason else None
    finished = done == job.rounds or session.ended is not None
    gradient, name = components.gradient(), session.folder.root.name
    accuracy = score_key("accuracy", "test", personal=counts_own_models(components))
    with (
        open_progress(name, job.rounds, done, comm.rank, accuracy=accuracy) as progress,
        record_outcomes(session, done),
        session.recording(gradient, progress, NOTHING.after(point.log)),
    ):
        announce(session, point, progress, finished=finished)
        run = build_run(
            components, comm, session.owner, checkpointer.store, gradient, session, signals
        )
        if run.clock is not None:
            for _, seconds in _logged_before(session, point, SIMULATED)[-1:]:
                run.clock.seconds = seconds or 0.0
        if not finished:  # a signal came during the start-up: a checkpoint is there already
            stop = int(comm.allreduce_max(np.array([signals.stop], dtype=np.float64))[0])
            if stop:
                raise stopped(stop, done, job.rounds)
        keep_freed_memory()
        try:
            server = point.take_server() if finished else run_engine(run, point.take_server(), done)
        except StoreError as e:
            checkpointer.require_in_place()  # a deleted file may be the cause: name it
            checkpointer.commit_after(e)
            # A StoreError exits with 2, which means that nothing was trained: here rounds were.
            raise StoreError(str(e), exit_code=1, collective=e.collective, prints=e.prints) from e
        except Exception as e:
            checkpointer.commit_after(e)
            raise
        if comm.rank == 0 and not finished:
            if session.ended:
                progress.note(f"{session.folder.root}: {session.ended}")
            warn_of_divergence(session, progress)
    final: Vector = components.training.algorithm.evaluated(server).cpu()
    return final


def _logged_before(
    session: RankSession, point: StartPoint, name: str
) -> list[tuple[int, float | None]]:
    """Collective: (round, value of a key) in the log up to ``point``, which rank 0 has."""
    lines = LogReader(session.folder.log).parse(point.log) if session.comm.rank == 0 else ()
    found = [(line["round"], line[name]) for line in lines if name in line]
    values: list[tuple[int, float | None]] = json.loads(session.comm.bcast(json.dumps(found)))
    return values
