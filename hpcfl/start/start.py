"""Start a run, fresh or from a checkpoint, and run its rounds to the end.

The command line and ``hpcfl.run`` call ``start`` and ``resume``, which make a ``StartRequest``.
It is served in six steps, each of them collective and the same on every rank:

    join_ranks     connect the ranks that the launcher started
    _agree         the same job on every rank, the place of each, and whether to resume
    _fetch_files   files of the run directory, the data and the model
    _build         data, clients, model and dry round (start.components), tried (start.checks)
    _begin         the run directory and its first checkpoint, or the one to resume from
    run_rounds     hpcfl.start.rounds, which calls hpcfl.engine.loop

A ``RankSession`` joins what the last two steps need.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import nn

from hpcfl.checkpoint import buffers, initial
from hpcfl.comm.connect import connect
from hpcfl.comm.failure import from_rank_0, group, raise_collectively
from hpcfl.comm.launcher import restarts
from hpcfl.comm.watched import WatchedComm
from hpcfl.data.fingerprints import Digests, fingerprints, require_alike
from hpcfl.engine.callbacks import Callback, Callbacks
from hpcfl.io.files import present
from hpcfl.io.signals import Signals, set_resumable
from hpcfl.job.callbacks import make_callbacks
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.runs.client_table import truncate_table
from hpcfl.runs.job_file.resume_rules import input_places
from hpcfl.runs.job_file.run_name import RUNS
from hpcfl.runs.job_file.settings import flatten
from hpcfl.runs.job_file.yaml_file import COMMAND_LINE
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader, truncate_log
from hpcfl.runs.manifest import INITIAL
from hpcfl.runs.record import read_run
from hpcfl.start.checks.disk import check_clients, check_disk_space, disk_budget, simulate_schedule
from hpcfl.start.checks.memory import check_memory
from hpcfl.start.checks.preflight import check_components
from hpcfl.start.checks.ranks import check_ranks
from hpcfl.start.components.build import build_components
from hpcfl.start.components.choose_executor import choose_executor, require_one_choice
from hpcfl.start.components.components import Components
from hpcfl.start.components.initial_model import fetch_model
from hpcfl.start.components.load_data import fetch_data, load_data_on_hosts
from hpcfl.start.copy_run import require_absent
from hpcfl.start.device import bfloat16_warning, device_type
from hpcfl.start.objects import KeptFiles
from hpcfl.start.rank_layout import Ranks, discover_ranks
from hpcfl.start.resume import resume_from, resume_latest
from hpcfl.start.resume_request import ResumeRequest
from hpcfl.start.rounds import run_rounds
from hpcfl.start.saved_models import load_model
from hpcfl.start.session import RankSession, StartPoint
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
        """The newest test accuracy in the log, of 0 to 1; None where none was measured.

        It is that of the clients' own models (``personal_accuracy``) where the run counts by them.
        """
        run = read_run(self.directory)
        curve = run.curve(run.score_key("accuracy"))
        return curve[-1][1] if curve else None

    def model(self) -> nn.Module:
        """The final model, see ``hpcfl.load_model``."""
        return load_model(self.directory)


@dataclass(frozen=True)
class StartRequest:
    """What a start was asked for; the same on every rank."""

    loaded: LoadedJob
    """The checked job."""
    folder: RunDir
    """The run directory."""
    resume: ResumeRequest | None = None
    """Which checkpoint to resume from, where the user asked for one."""
    continued: bool = False
    """Resume from the folder's newest checkpoint, where there is one."""
    kept_files: KeptFiles | None = None
    """Files that the job names in the folder, to be written there first."""
    callbacks: Sequence[Callback] = ()
    """Objects beside those that the job names."""
    resumed: bool = False
    """Whether it begins at a checkpoint; ``_agree`` finds out."""


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
    return _run(
        StartRequest(
            loaded, folder, continued=continued, kept_files=kept_files, callbacks=callbacks
        )
    )


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
            ``out`` also others, and the copy is a branch (``hpcfl.runs.job_file.resume_rules``).
        out: resume there, in a copy; the run in ``root`` is left as it is, and may be alive.
        round: which checkpoint; the newest when None.  Later ones are deleted.
        verify: read all client states first; else each one when it is first used.
        callbacks: objects beside those that the job names.
        origin: of the overrides, as error messages name it.

    Raises:
        JobError: the directory holds no run, one that is alive, or not that round, or went back
            there by the same request; a setting would change past rounds; ``out`` exists.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: see ``hpcfl.engine.loop.run_rounds``.
    """
    set_resumable(out or root)
    asked = ResumeRequest.of(
        RunDir(root),
        overrides,
        round=round,
        verify_states=verify,
        copied=out is not None,
        origin=origin,
    )
    return _run(StartRequest(asked.loaded, RunDir(out or root), asked, callbacks=callbacks))


@settings_restored()
def _run(request: StartRequest) -> Result:
    """Collective: serve a request on the ranks that the launcher started."""
    comm = join_ranks(request.loaded.job, request.folder.root)
    with group(comm):
        return serve(request, comm)


def join_ranks(job: Job, root: Path) -> WatchedComm:
    """Collective: step 1, join the ranks that the launcher started.

    Args:
        job: of the run.
        root: the run directory, which need not be there.

    Raises:
        JobError, DiskError, RankError: see ``hpcfl.comm.connect.connect``.
    """
    config, exact = job.comm, job.reduction == "exact"
    joined = connect(config.backend, device_type(job), config.timeout_s, root, exact=exact)
    return WatchedComm(joined, config.timeout_s)


def serve(request: StartRequest, comm: WatchedComm) -> Result:
    """Collective: serve a request on these ranks, to the last round.

    Raises:
        JobError: nothing was trained.
        DivergedError, Stopped: see ``hpcfl.engine.loop.run_rounds``.
    """
    with (
        # After MPI's start, which installs a handler of SIGUSR1.
        Signals(latch_interrupt=False) as signals,
        request.folder as folder,
    ):
        request, ranks = _agree(request, comm)
        callbacks = _fetch_files(request, comm)
        components, inputs, ranks = _build(request, ranks, comm)
        with closing(RankSession(components, ranks, folder, comm, inputs, callbacks)) as session:
            point = _begin(session, request)
            # A checkpoint is committed: Ctrl-C may now wait for the end of a round.
            signals.latch_interrupt = True
            x = run_rounds(session, point, signals)
            done = session.ended.round if session.ended else components.job.rounds
    return Result(folder.root.absolute(), done, x)


def _agree(request: StartRequest, comm: WatchedComm) -> tuple[StartRequest, Ranks]:
    """Collective: step 2, the same job on every rank, a device for each, and where to begin."""
    loaded, folder = request.loaded, request.folder
    if request.kept_files is not None:
        loaded = request.kept_files.agree(loaded, folder, comm)
    ranks = discover_ranks(loaded, folder.root, comm)
    ranks = ranks.with_notes(*check_ranks(ranks.infos, comm.backend))
    resumed = request.resume is not None or (
        request.continued and from_rank_0(comm, partial(_has_checkpoint, folder))
    )
    return replace(request, loaded=loaded, resumed=resumed), ranks


def _has_checkpoint(folder: RunDir) -> bool:
    """Whether the folder holds a checkpoint.

    Raises:
        JobError: there are checkpoints, but no job.
    """
    if folder.has_checkpoint:
        folder.require()
    return folder.has_checkpoint


def _fetch_files(request: StartRequest, comm: WatchedComm) -> Callbacks:
    """Collective: step 3, bring the files that the run reads into place; the callbacks.

    Rank 0 alone writes and downloads, and it alone has callbacks.

    Raises:
        JobError, DataError: a file cannot be fetched or written, or a callback cannot be made.
    """
    loaded, folder, kept_files = request.loaded, request.folder, request.kept_files
    named: list[tuple[str, Callback]] = []
    with raise_collectively(comm):
        if comm.rank == 0:
            if request.resume is not None and request.resume.copied:
                # Not on other ranks: they would remember for a while that NFS has no such folder.
                require_absent(folder.root, request.resume)
            named = make_callbacks(loaded.job.callbacks, loaded.job.seed)
            named += [(type(callback).__qualname__, callback) for callback in request.callbacks]
            folder.refuse_foreign()
            if kept_files is not None:
                kept_files.write(folder)
            fetch_data(loaded)
            if not request.resumed:
                fetch_model(loaded)
    if kept_files is not None:
        kept_files.release()
    return Callbacks(named, loaded.job.seed)


def _build(
    request: StartRequest, ranks: Ranks, comm: WatchedComm
) -> tuple[Components, Digests, Ranks]:
    """Collective: step 4, load the data, build the components, and try all of the user's classes.

    Returns:
        The components, the digests of the job's inputs, and the ranks with what there is to say.

    Raises:
        JobError, DataError: something in the job does not fit, or differs by rank.
    """
    loaded = request.loaded
    data = load_data_on_hosts(loaded, ranks.device, comm)
    notes, places = list(data.notes), input_places(flatten(loaded.tree))
    with raise_collectively(comm):
        components = build_components(
            loaded, ranks.device, resumed=request.resumed, dataset=data.dataset
        )
        inputs = fingerprints(loaded.job.data, data.dataset, places)
        notes += check_components(components, resumed=request.resumed)
    require_alike(inputs, places, comm)
    if components.job.executor == "auto":
        branch = request.resume is not None and request.resume.parent is not None
        # Also of a start that ended before its first checkpoint: its job is in the folder.
        begun = not branch and from_rank_0(comm, partial(present, request.folder.job))
        with raise_collectively(comm):
            components, line = choose_executor(components, request.folder if begun else None)
        require_one_choice(components, comm)
        notes.append(line)
    # Rank 0 alone writes to the terminal, so it alone measures.
    slow = bfloat16_warning(components.job, ranks.device) if comm.rank == 0 else None
    return components, inputs, ranks.with_notes(*notes, *filter(None, [slow]))


def _begin(session: RankSession, request: StartRequest) -> StartPoint:
    """Collective: step 5, make the run directory, or verify a checkpoint and go back to it."""
    if request.resume is not None:
        return resume_from(session, request.resume)
    if request.resumed:
        return resume_latest(session)
    return start_fresh(session, continued=request.continued)


def start_fresh(session: RankSession, *, continued: bool = False) -> StartPoint:
    """Collective: make the run directory, and commit the checkpoint of round 0.

    Args:
        session: of this rank.
        continued: see ``RunDir.claim``.

    Raises:
        JobError: the directory cannot be written, or holds a run; the ranks' models differ; or
            memory or disk are too small.
        DiskError: the disk is full or fails.
    """
    components, folder, checkpointer = session.components, session.folder, session.checkpointer
    function = session.agree_on_function(components, folder)
    with raise_collectively(session.comm):
        if session.comm.rank == 0:
            usage = simulate_schedule(components, session.comm.size)
            check_clients(components, usage)
            check_memory(components, usage)
            folder.claim(components.loaded.tree, continued=continued)
            checkpointer.run_files = {
                INITIAL: initial.write(folder.initial, components.model.x0),
                **folder.write_function(function),
            }
            buffers.write(folder.buffers, components.model.buffers)
            # A start that died before its first checkpoint may have left files.
            truncate_log(folder.log, b"")
            truncate_table(folder.clients, 0)
            checkpointer.record_opening(session.session_id)
            checkpointer.prune_stores()
            check_disk_space(disk_budget(components, usage), folder.root)
            folder.hold_open()
    set_resumable(folder.root)  # a checkpoint that is committed there is this run's own
    # Absolute, as all paths that threads use: a callback may be in another folder meanwhile.
    session.comm.start_heartbeats(folder.ranks.absolute(), session.session_id)
    session.open_store()
    server = components.training.algorithm.init_server(components.model.x0)
    session.begin_checkpoint(0, server)
    session.commit_checkpoint(0)
    return StartPoint(server, 0)
