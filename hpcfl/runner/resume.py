"""Resume a run: from the newest checkpoint of its directory, or as a ``ResumeRequest`` says."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcfl.checkpoint import buffers
from hpcfl.checkpoint.format import read_extra_tensors, read_server
from hpcfl.checkpoint.verify import verify_states
from hpcfl.comm.failure import from_rank_0, raise_collectively
from hpcfl.engine.dry_round import dry_round
from hpcfl.errors import JobError, StoreError
from hpcfl.io import regular
from hpcfl.io.atomic import STANDS, write_file
from hpcfl.io.files import READABLE, read_bytes
from hpcfl.job.schema import Job
from hpcfl.job.settings import flatten, written
from hpcfl.run_dir.branches import Branch
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import require_log_prefix, truncate_log
from hpcfl.run_dir.manifest import (
    BEST,
    Checkpoint,
    check_files,
    check_run_files,
    delete_newer,
    find,
    folder_of,
    prune,
    rounds,
)
from hpcfl.runner.copy_run import NewJob, copy_run
from hpcfl.runner.resume_request import ResumeRequest
from hpcfl.runner.session import RankSession
from hpcfl.setup.components import Components
from hpcfl.store.row_table import Table


class StartPoint(NamedTuple):
    """The state that the rounds of one start begin with."""

    server: Any
    round: int
    """Rounds completed."""
    extra_tensors: Mapping[str, Tensor]
    """Other tensors of the checkpoint, such as the last update of x."""


def resume_latest(session: RankSession) -> StartPoint:
    """Collective: resume from the newest checkpoint of the session's folder (``--continue``).

    Raises:
        JobError, StoreError: see ``ResumeRequest``; nothing was changed.
    """
    with raise_collectively(session.comm):
        request = ResumeRequest.of_job(session.folder, session.components.loaded)
    return resume_from(session, request)


def resume_from(session: RankSession, request: ResumeRequest) -> StartPoint:
    """Collective: resume from a checkpoint that any number of ranks wrote.

    All of it is verified before anything is changed; then later checkpoints are deleted.  Where the
    session's folder is not the request's, it becomes a copy of it first.

    Raises:
        JobError, StoreError: see ``ResumeRequest``; nothing was changed.
    """
    components, comm, folder = session.components, session.comm, session.folder
    verify_all = request.verify_states
    if folder.root != request.source.root:
        request = _copy(session, request)
        verify_all = False  # the states were compared as they were copied
    retained_rounds = from_rank_0(comm, lambda: _lock(session, request))
    comm.start_heartbeats(folder.ranks.absolute(), session.session_id)
    with raise_collectively(comm), request.suggest_older(retained_rounds):
        newest = find(folder.checkpoints, retained_rounds[-1])
    with raise_collectively(comm):
        # Before the server and states are read: here a model of edited code is named as such.
        components = _with_initial_model(components, folder, newest)
    with raise_collectively(comm), request.suggest_older(retained_rounds):
        server = read_server(newest, components.schema.server, components.device)
        extra_tensors = read_extra_tensors(newest, components.device)
        if comm.rank == 0:
            require_log_prefix(folder.log, newest.log)
        table = Table.load(newest.folder, folder.stores)
        verify_states(
            table,
            components.stored_state,
            session.my_clients,
            rows=verify_all,
            show_progress=comm.rank == 0,
        )
    retained_folders = [folder_of(folder.checkpoints, round) for round in retained_rounds]
    with raise_collectively(comm):
        session.run_files = newest.run_files
        session.components = components
        if comm.rank == 0:
            session.record_opening()
            if rounds(folder.checkpoints) == retained_rounds:
                session.prune_stores(retained_folders)  # makes room, if this start copies states
    session.open_store()
    with raise_collectively(comm):
        session.restore_states(newest, retained_folders)
    with raise_collectively(comm):
        if comm.rank == 0:
            _rewind(session, newest, retained_folders, request.job_after)
    return StartPoint(server, newest.round, extra_tensors)


def _lock(session: RankSession, request: ResumeRequest) -> list[int]:
    """Lock the run on rank 0 and check its files; the rounds that are kept.

    Raises:
        JobError, StoreError, DataError: see ``ResumeRequest.checkpoint_rounds``; or a run is alive
            in the directory, or a file is damaged.
    """
    folder = session.folder
    folder.lock()
    if read_bytes(folder.job, READABLE) not in (request.job_before, request.job_after):
        raise JobError(f"{folder.job}: was changed while it was read; resume again")
    folder.history_entries()  # fails now, not when this start is added, if it is damaged
    retained_rounds = request.checkpoint_rounds(folder, session.inputs)
    prune(folder.checkpoints)
    _require_older_whole(folder.checkpoints, retained_rounds)
    return retained_rounds


def _copy(session: RankSession, request: ResumeRequest) -> ResumeRequest:
    """Collective: make the session's folder, a copy of the request's run, or a branch of it.

    Returns:
        The request with the job of the copy.
    """
    comm, source = session.comm, request.source
    retained_rounds = from_rank_0(comm, lambda: request.checkpoint_rounds(source, session.inputs))
    with request.suggest_older(retained_rounds), raise_collectively(comm):
        at = find(source.checkpoints, retained_rounds[-1])
        check_files(at)
    branch = None
    if request.parent is not None:
        with raise_collectively(comm):
            tree = session.components.loaded.tree  # its defaults are resolved
            before, after = flatten(request.parent.tree), flatten(tree)
            made = Branch.of(source.root, at.round, before, after)
            branch = made if made.changes else None  # executor: auto may choose the parent's
            _require_same_form(session.components, request.parent.job)
            if at.round == session.components.job.rounds:
                raise JobError(
                    f"rounds: a branch at round {at.round} of {source.root} has no round left; "
                    "begin at an older checkpoint with --round, or set rounds to more"
                )
        request = replace(request, job_after=source.job_text(tree))
    with raise_collectively(comm):
        # Only to find out whether it can be read.
        _with_initial_model(session.components, source, at)
    with request.suggest_older(retained_rounds):
        copy_run(
            source,
            at,
            session.folder.root,
            session.components.stored_state,
            comm,
            NewJob(request.job_after, branch),
        )
    return request


def _require_same_form(components: Components, parent: Job) -> None:
    """Refuse a branch whose server or client states have another form than its parent's.

    Raises:
        JobError: they have, or what precedes round 1 would have been another: the first server, or
            a warm start, which only one of the two has.
    """
    algorithm, name = components.algorithm, components.loaded.tree["algorithm"]["name"]
    before = dry_round(parent.algorithm, components.x0.numel(), components.x0.dtype)
    changes = ", ".join(
        f"{field.name} {written(getattr(parent.algorithm, field.name))} -> {written(value)}"
        for field in fields(algorithm)
        if (value := getattr(algorithm, field.name)) != getattr(parent.algorithm, field.name)
    )
    if before.form != components.schema.form:
        why = "the states of the server or of the clients would have another form"
    elif parent.algorithm.warm_start != algorithm.warm_start:
        why = "the states before round 1 would have been others"
    elif not _same(*(one.init_server(components.x0) for one in (parent.algorithm, algorithm))):
        why = "it begins with the parent's server, which had the other value"
    else:
        return
    raise JobError(
        f"algorithm: {name} cannot branch with {changes}: {why}; start a new run with them"
    )


def _same(first: Any, second: Any) -> bool:
    """Whether two servers have the same tensors."""
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple):
        return all(map(_same, first, second))
    return bool(first == second)


def _with_initial_model(components: Components, folder: RunDir, at: Checkpoint) -> Components:
    """The components with the initial model of the run in ``folder``, and its buffers."""
    check_run_files(at, folder.root)
    buffers.read(folder.buffers, components.buffers)
    return components.changed(x0=folder.read_initial(components.x0).to(components.device))


def _require_older_whole(root: Path, retained_rounds: Sequence[int]) -> None:
    """Check the files of the older checkpoints: they are kept, and the next commit reads them."""
    for round in retained_rounds[:-1]:
        try:
            check_files(find(root, round))
        except StoreError as e:
            raise StoreError(
                f"{e}, or remove this one's folder to resume from round {retained_rounds[-1]}"
            ) from e


def _rewind(
    session: RankSession, newest: Checkpoint, retained_folders: Sequence[Path], job: bytes
) -> None:
    """Delete everything that was written after the checkpoint ``newest``; on rank 0 alone.

    The order of the steps leaves the run resumable if a kill interrupts it between any two.
    """
    folder = session.folder
    delete_newer(folder.checkpoints, newest.round)
    if regular.read(folder.job) != job:
        write_file(folder.job, job, advice=STANDS)
    session.prune_stores(list(retained_folders))
    truncate_log(folder.log, newest.log)
    session.best.restore(newest.best, newest.folder / BEST)
    folder.hold_open()
