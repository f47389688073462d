"""Start a run, fresh or from a checkpoint, and run its rounds to the end.

The command line and ``hpcfl.run`` call ``start`` and ``resume``, which make a ``StartRequest``.
It is served in six steps, each of them collective and the same on every rank:

    join_ranks     connect the ranks that the launcher started
    agree          the same job on every rank, the place of each, and whether to resume
    fetch_files    files of the run directory, the data and the model
    build          data, clients, model and dry round (start.components), tried (start.checks)
    begin          the run directory and its first checkpoint, or the one to resume from
    run_rounds     hpcfl.start.rounds, which calls hpcfl.engine.loop

A ``RankSession`` joins what the last two steps need.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hpcfl.comm.connect import connect
from hpcfl.comm.failure import group
from hpcfl.comm.launcher import restarts
from hpcfl.comm.watched import WatchedComm
from hpcfl.engine.callbacks import Callback
from hpcfl.io.signals import Signals, set_resumable
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.runs.job_file.run_name import RUNS
from hpcfl.runs.job_file.yaml_file import COMMAND_LINE
from hpcfl.runs.layout import RunDir
from hpcfl.start.begin import begin
from hpcfl.start.device import device_type
from hpcfl.start.objects import KeptFiles
from hpcfl.start.prepare import agree, build, fetch_files
from hpcfl.start.request import StartRequest
from hpcfl.start.result import Result
from hpcfl.start.resume_request import ResumeRequest
from hpcfl.start.rounds import run_rounds
from hpcfl.start.session import RankSession
from hpcfl.user_code.process_settings import settings_restored


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
    source = RunDir(root)
    asked = ResumeRequest.of(
        source,
        overrides,
        round=round,
        verify_states=verify,
        copied=out is not None,
        origin=origin,
    )
    folder = source if out is None else RunDir(out)
    return _run(StartRequest(asked.loaded, folder, asked, callbacks=callbacks))


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
        request, ranks = agree(request, comm)
        callbacks = fetch_files(request, comm)
        # No name here for the components: the session frees those that no round needs.
        session = RankSession(*build(request, ranks, comm), folder, comm, callbacks)
        with closing(session):
            point = begin(session, request)
            # A checkpoint is committed: Ctrl-C may now wait for the end of a round.
            signals.latch_interrupt = True
            x = run_rounds(session, point, signals)
            done = session.ended.round if session.ended else session.components.job.rounds
    return Result(folder.root.absolute(), done, x)
