"""Start a run, fresh or from a checkpoint, and run its rounds to the end.

The command line and ``hpcfl.run`` call ``start`` and ``resume``.  Both are collective and do the
same on every rank, in this order:

    connect the ranks            hpcfl.comm.connect
    discover where each one is   hpcfl.setup.rank_layout, hpcfl.checks.ranks
    build the components         hpcfl.setup.components: data, clients, model, dry round
    check them                   hpcfl.checks.preflight
    open a RankSession           hpcfl.runner.session: store, log, checkpoints
    start_fresh or resume_from   here and in hpcfl.runner.resume
    run the rounds               hpcfl.engine.loop
"""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from hpcfl.checkpoint import buffers
from hpcfl.checks.disk import check_clients, check_disk_space, disk_budget, simulate_schedule
from hpcfl.checks.preflight import check_components
from hpcfl.checks.ranks import check_ranks
from hpcfl.comm.connect import connect
from hpcfl.comm.failure import from_rank_0, group, raise_collectively
from hpcfl.comm.launcher import restarts
from hpcfl.comm.watched import WatchedComm
from hpcfl.data.fingerprints import fingerprints, require_alike
from hpcfl.engine.callbacks import Callback, Callbacks
from hpcfl.engine.loop import run_rounds
from hpcfl.errors import StoreError
from hpcfl.evaluation import Clients, Evaluation
from hpcfl.exports.checkpoint import load_model
from hpcfl.io.atomic import write_errors
from hpcfl.io.files import present
from hpcfl.io.progress import open_progress
from hpcfl.job.callbacks import make_callbacks
from hpcfl.job.resume_rules import input_places
from hpcfl.job.run_name import RUNS
from hpcfl.job.schema import LoadedJob
from hpcfl.job.settings import flatten
from hpcfl.job.yaml_file import COMMAND_LINE
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import NOTHING, LogReader, truncate_log
from hpcfl.runner.copy_run import require_absent
from hpcfl.runner.record_start import (
    list_kept_rounds,
    record_outcomes,
    record_start,
    warn_of_divergence,
)
from hpcfl.runner.resume import StartPoint, resume_from, resume_latest
from hpcfl.runner.resume_request import ResumeRequest
from hpcfl.runner.session import RankSession
from hpcfl.setup.choose_executor import choose_executor
from hpcfl.setup.components import build_components, build_run
from hpcfl.setup.device import bfloat16_warning, device_type
from hpcfl.setup.initial_model import fetch_model
from hpcfl.setup.load_data import fetch_data, load_data_on_hosts
from hpcfl.setup.objects import KeptFiles
from hpcfl.setup.rank_layout import Ranks, discover_ranks
from hpcfl.signals import Signals, set_resumable, stopped
from hpcfl.types import Record, Vector
from hpcfl.user_code.process_settings import settings_restored


@dataclass(frozen=True)
class Result:
    """The model and the log of a finished run."""

    directory: Path
    """The run directory, as an absolute path."""
    rounds: int
    """Rounds completed."""
    x: Vector = field(repr=False)
    """The final model, flat, on the CPU."""

    @property
    def log(self) -> list[Record]:
        """One object a round, from log.jsonl."""
        return [dict(entry) for entry in LogReader(self.directory / "log.jsonl").read()]

    @property
    def accuracy(self) -> float | None:
        """The newest test accuracy in the log, of 0 to 1; None where none was measured."""
        found = (entry.get("test_accuracy") for entry in reversed(self.log))
        return next((value for value in found if value is not None), None)

    @property
    def path(self) -> Path:
        """The run directory, by its name in earlier versions."""
        return self.directory

    def model(self) -> nn.Module:
        """The final model, see ``hpcfl.load_model``."""
        return load_model(self.directory)


def start(
    loaded: LoadedJob,
    out: Path | None = None,
    *,
    continued: bool = False,
    kept_files: KeptFiles | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Start a run in a directory of its own; collective if a launcher started several ranks.

    Args:
        loaded: the checked job.
        out: the run directory; runs/NAME when absent.
        continued: resume where the directory holds a checkpoint of this job; so does a start by
            which torchrun repeats one that failed (``--max-restarts``).
        kept_files: files that the job names in the run directory, to be written there.
        callbacks: objects beside those that the job names.

    Raises:
        JobError: nothing was trained.
        DivergedError, Stopped: see ``hpcfl.engine.loop.run_rounds``.
    """
    folder = RunDir(out or RUNS / loaded.name)
    continued = continued or restarts(os.environ) != "0"
    set_resumable(folder.root if continued else None)
    return _run(loaded, folder, continued=continued, kept_files=kept_files, callbacks=callbacks)


def resume(
    root: Path,
    overrides: Sequence[str] = (),
    *,
    out: Path | None = None,
    round: int | None = None,
    verify: bool = True,
    callbacks: Sequence[Callback] = (),
    origin: str = COMMAND_LINE,
) -> Result:
    """Resume a run from a checkpoint, on any number of ranks; collective.

    Args:
        root: the run directory.
        overrides: ``key.path=value`` settings over the job's, which change no past round; with
            ``out`` also others, and the copy is a branch (``hpcfl.job.resume_rules``).
        out: resume there, in a copy; the run in ``root`` is left as it is, and may be alive.
        round: which checkpoint; the newest when None.  Later ones are deleted.
        verify: read all client states first; else each one when it is first used.
        callbacks: objects beside those that the job names.
        origin: of the overrides, as error messages name it.

    Raises:
        JobError: the directory holds no run, one that is alive, or not that round, or a setting
            would change past rounds; ``out`` exists.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: see ``hpcfl.engine.loop.run_rounds``.
    """
    set_resumable(out or root)
    request = ResumeRequest.of(
        RunDir(root),
        overrides,
        round=round,
        verify_states=verify,
        copied=out is not None,
        origin=origin,
    )
    return _run(
        request.loaded,
        RunDir(out or root),
        request=request,
        copied=out is not None,
        callbacks=callbacks,
    )


@settings_restored()
def _run(
    loaded: LoadedJob,
    folder: RunDir,
    *,
    request: ResumeRequest | None = None,
    copied: bool = False,
    continued: bool = False,
    kept_files: KeptFiles | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Collective: everything from connecting the ranks to the last round.

    Args:
        loaded: the checked job.
        folder: the run directory.
        request: which checkpoint to resume from, where the user asked for one.
        copied: whether ``folder`` is to become a copy of the run that is resumed.
        continued: resume from the folder's newest checkpoint, where there is one.
        kept_files: files to write to the folder first.
        callbacks: objects beside those that the job names.
    """
    config = loaded.job.comm
    connected = connect(config.backend, device_type(loaded.job), config.timeout_s)
    comm = WatchedComm(connected, config.timeout_s)
    with (
        group(comm),
        # After MPI's start, which installs a handler of SIGUSR1.
        Signals(latch_interrupt=False) as signals,
        folder,
    ):
        if kept_files is not None:
            loaded = kept_files.agree(loaded, folder, comm)
        ranks = discover_ranks(loaded, folder.root, comm)
        ranks = ranks.with_notes(*check_ranks(ranks.infos, comm.backend))
        resumed = request is not None or (
            continued and from_rank_0(comm, partial(_has_checkpoint, folder))
        )
        named = [(type(callback).__qualname__, callback) for callback in callbacks]
        with raise_collectively(comm):
            if comm.rank == 0:
                if copied:  # other ranks would remember for a while that NFS has no such folder
                    require_absent(folder.root)
                named = make_callbacks(loaded.job.callbacks, loaded.job.seed) + named
                _fetch_files(loaded, folder, kept_files, resumed=resumed)
        if kept_files is not None:
            kept_files.release()
        data = load_data_on_hosts(loaded, ranks.device, comm)
        ranks = ranks.with_notes(*data.notes)
        places = input_places(flatten(loaded.tree))
        with raise_collectively(comm):
            components = build_components(
                loaded, ranks.device, resumed=resumed, dataset=data.dataset
            )
            inputs = fingerprints(loaded.job.data, data.dataset, places)
            ranks = ranks.with_notes(*check_components(components))
        require_alike(inputs, places, comm)
        if components.job.executor == "auto":
            branch = request is not None and request.parent is not None
            # Also of a start that ended before its first checkpoint: its job is in the folder.
            begun = not branch and from_rank_0(comm, partial(present, folder.job))
            with raise_collectively(comm):
                components, line = choose_executor(components, folder if begun else None)
            ranks = ranks.with_notes(line)
        # Rank 0 alone writes to the terminal, so it alone measures.
        slow = bfloat16_warning(components.job, ranks.device) if comm.rank == 0 else None
        if slow:
            ranks = ranks.with_notes(slow)
        called = Callbacks(named if comm.rank == 0 else [], loaded.job.seed)
        with closing(RankSession(components, folder, comm, inputs, called)) as session:
            if request is not None:
                point = resume_from(session, request)
            elif resumed:
                point = resume_latest(session)
            else:
                point = start_fresh(session, continued=continued)
            # A checkpoint is committed: Ctrl-C may now wait for the end of a round.
            signals.latch_interrupt = True
            x = _run_rounds(session, ranks, point, signals)
        return Result(folder.root.absolute(), components.job.rounds, x)


def _fetch_files(
    loaded: LoadedJob, folder: RunDir, kept_files: KeptFiles | None, *, resumed: bool
) -> None:
    """Bring the files that the run reads into place; on rank 0 alone.

    Raises:
        JobError, DataError: one cannot be fetched or written.
    """
    folder.refuse_foreign()
    if kept_files is not None:
        kept_files.write(folder)
    fetch_data(loaded)
    if not resumed:
        fetch_model(loaded)


def _has_checkpoint(folder: RunDir) -> bool:
    """Whether the folder holds a checkpoint.

    Raises:
        JobError: there are checkpoints, but no job.
    """
    if folder.has_checkpoint:
        folder.require()
    return folder.has_checkpoint


def start_fresh(session: RankSession, *, continued: bool = False) -> StartPoint:
    """Collective: make the run directory, and commit the checkpoint of round 0.

    Args:
        session: of this rank.
        continued: see ``RunDir.claim``.

    Raises:
        JobError: the directory cannot be written, or holds a run.
        DiskError: the disk is full or fails.
    """
    components, folder = session.components, session.folder
    with raise_collectively(session.comm):
        if session.comm.rank == 0:
            usage = simulate_schedule(components, session.comm.size)
            check_clients(components, usage)
            folder.claim(components.loaded.tree, continued=continued)
            session.run_files = folder.write_initial(components.x0)
            buffers.write(folder.buffers, components.buffers)
            # A start that died before its first checkpoint may have left files.
            truncate_log(folder.log, NOTHING)
            session.record_opening()
            session.prune_stores([])
            check_disk_space(disk_budget(components, usage), folder.root)
            folder.hold_open()
    set_resumable(folder.root)  # a checkpoint that is committed there is this run's own
    session.comm.start_heartbeats(folder.ranks.absolute(), session.session_id)
    session.open_store()
    server = components.algorithm.init_server(components.x0)
    session.begin_checkpoint(0, server, {})
    session.commit_checkpoint(0)
    return StartPoint(server, 0, {})


def _run_rounds(session: RankSession, ranks: Ranks, point: StartPoint, signals: Signals) -> Vector:
    """Collective: run the rounds from ``point`` to the end; the final model."""
    components, folder, comm = session.components, session.folder, session.comm
    job, done = components.job, point.round
    finished = done == job.rounds
    gradient = components.gradient()
    clients = Clients(
        components.clients,
        session.my_clients,
        components.weights,
        partial(components.own_model, session.store),
    )
    sets = {"test": components.tests(), "validation": components.validation()}
    evaluation = Evaluation(job.evaluate, gradient, components.dataset, sets, clients, comm)
    with (
        open_progress(folder.root.name, job.rounds, done, comm.rank) as progress,
        record_outcomes(session, done),
        session.recording(evaluation, progress),
    ):
        progress.note(
            f"{folder.root}: finished, nothing to do" if finished else session.describe(done)
        )
        for line in (*components.loaded.notes, *ranks.notes, *components.dataset.notes):
            progress.note(line)
        if comm.rank == 0:
            with write_errors(folder.history):
                record_start(session, ranks, done, progress)
                if done and not finished:
                    list_kept_rounds(session, progress)
            session.start_callbacks(done)
        run = build_run(components, comm, session.owner, session.store, gradient, session, signals)
        run.observer.restore(point.extra_tensors)
        if not finished:  # a signal came during the start-up: a checkpoint is there already
            stop = int(comm.allreduce_max(np.array([signals.stop], dtype=np.float64))[0])
            if stop:
                raise stopped(stop, done, job.rounds)
        try:
            server = run_rounds(run, point.server, done)
        except StoreError as e:
            session.require_in_place()  # a deleted file may be the cause: name it
            # A StoreError exits with 2, which means that nothing was trained: here rounds were.
            raise StoreError(str(e), exit_code=1, collective=e.collective, prints=e.prints) from e
        if comm.rank == 0 and not finished:
            warn_of_divergence(session, progress)
    final: Vector = server.x.cpu()
    return final
