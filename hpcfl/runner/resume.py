"""Resume a run: from the newest checkpoint of its directory, or as a ``ResumeRequest`` says."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from hpcfl.checkpoint import buffers
from hpcfl.checkpoint.format import read_checkpoint
from hpcfl.checkpoint.verify import verify_states
from hpcfl.comm.base import Comm
from hpcfl.comm.failure import from_rank_0, raise_collectively
from hpcfl.engine.dry_round import dry_round
from hpcfl.errors import JobError, StoreError
from hpcfl.io.atomic import STANDS
from hpcfl.job.schema import Job
from hpcfl.job.settings import flatten, written
from hpcfl.run_dir.branches import Branch, parse_branches
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import require_log_prefix, truncate_log
from hpcfl.run_dir.manifest import (
    BEST,
    BRANCHES,
    INITIAL,
    Checkpoint,
    check_files,
    delete_newer,
    find,
    folder_of,
    parse,
    prune,
    read_files,
    read_run_files,
    rounds,
    write_manifest,
)
from hpcfl.runner.copy_run import NewJob, copy_run
from hpcfl.runner.resume_request import ResumeRequest
from hpcfl.runner.session import RankSession, StartPoint
from hpcfl.setup.code_digests import edited_since, model_digests, other_shape
from hpcfl.setup.components import Components
from hpcfl.store.row_table import Table, is_row_table


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
    if request.copied:
        request = _copy(session, request)
        verify_all = False  # the states were compared as they were copied
    retained_rounds, newest = _from_rank_0(comm, folder, lambda: _lock(session, request))
    comm.start_heartbeats(folder.ranks.absolute(), session.session_id)
    with raise_collectively(comm), request.suggest_older(retained_rounds):
        found = read_checkpoint(newest, components.schema.server, components.device)
        log = require_log_prefix(folder.log, newest.log) if comm.rank == 0 else b""
        table = Table.load(newest.folder, folder.stores, found.row_tables)
        if table.ranks != newest.ranks:
            raise StoreError(
                f"{newest.folder}: row tables of {table.ranks} ranks, expected {newest.ranks}"
            )
        verify_states(
            table,
            components.stored_state,
            session.my_clients,
            rows=verify_all,
            show_progress=comm.rank == 0,
        )
    checkpointer = session.checkpointer
    with raise_collectively(comm):
        older = _older_tables(session, retained_rounds)
        checkpointer.run_files = newest.run_files
        session.components, run_files = _with_initial_model(components, folder, newest)
        if comm.rank == 0:
            if BRANCHES in run_files:
                session.branches = parse_branches(folder.branches, run_files[BRANCHES])
            checkpointer.keep_segments(newest.folder, found.row_tables)
            checkpointer.record_opening(session.session_id)
            if rounds(folder.checkpoints) == retained_rounds:
                checkpointer.prune_stores()  # makes room, if this start copies states
    session.open_store()
    with raise_collectively(comm):
        checkpointer.restore(table, older)
    with raise_collectively(comm):
        if comm.rank == 0:
            _rewind(session, newest, log, request.job_after)
            checkpointer.best.restore(found.best, newest.folder / BEST)
            folder.hold_open()
    return StartPoint(found.server, newest.round, found.extra_tensors, log)


def _from_rank_0(
    comm: Comm, folder: RunDir, found: Callable[[], tuple[list[int], Checkpoint]]
) -> tuple[list[int], Checkpoint]:
    """Collective: the rounds that are kept, and the checkpoint to begin at, as rank 0 finds them.

    Raises:
        HpcflError: raised by ``found`` on rank 0.
    """

    def content() -> tuple[list[int], str]:
        kept, newest = found()
        return kept, write_manifest(newest).decode()

    kept, manifest = from_rank_0(comm, content)
    return kept, parse(folder_of(folder.checkpoints, kept[-1]), manifest.encode())


def _lock(session: RankSession, request: ResumeRequest) -> tuple[list[int], Checkpoint]:
    """Lock the run on rank 0; the rounds that are kept, and the checkpoint to begin at.

    Raises:
        JobError, StoreError, DataError: see ``ResumeRequest.checkpoint``; or a run is alive in the
            directory, or a file is damaged.
    """
    folder = session.folder
    folder.lock()
    # From here on no other process changes the run: what is read now is passed on.
    if folder.job_content() not in (request.job_before, request.job_after):
        raise JobError(f"{folder.job}: was changed while it was read; resume again")
    folder.history_entries()  # fails now, not when this start is added, if it is damaged
    found = _checkpoint(session, request, folder)
    prune(folder.checkpoints)
    return found


def _checkpoint(
    session: RankSession, request: ResumeRequest, folder: RunDir
) -> tuple[list[int], Checkpoint]:
    """The rounds that are kept in ``folder``, and the checkpoint to begin at; on rank 0.

    Raises:
        JobError, StoreError, DataError: see ``ResumeRequest.checkpoint``; or the model has another
            shape, as its code was edited.
    """
    retained_rounds, newest = request.checkpoint(folder, session.inputs)
    components = session.components
    edited = edited_since(folder, newest.round, model_digests(components.job, components.model))
    if edited:
        size, before = components.x0.numel(), folder.read_initial().numel()
        if size != before:
            raise other_shape(folder, edited, size, before)
    return retained_rounds, newest


def _copy(session: RankSession, request: ResumeRequest) -> ResumeRequest:
    """Collective: make the session's folder, a copy of the request's run, or a branch of it.

    Returns:
        The request with the job of the copy.
    """
    comm, source = session.comm, request.source
    retained_rounds, at = _from_rank_0(comm, source, lambda: _checkpoint(session, request, source))
    with request.suggest_older(retained_rounds), raise_collectively(comm):
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


def _with_initial_model(
    components: Components, folder: RunDir, at: Checkpoint
) -> tuple[Components, dict[str, bytes]]:
    """The components with the initial model of the run in ``folder``, and its buffers.

    Returns:
        The components, and the content of the files that no round changes, by name.
    """
    run_files = read_run_files(at, folder.root)
    buffers.read(folder.buffers, components.buffers)
    x0 = folder.read_initial(components.x0, run_files[INITIAL])
    return components.changed(x0=x0.to(components.device)), run_files


def _older_tables(session: RankSession, retained_rounds: Sequence[int]) -> list[Table]:
    """This rank's row tables of the older checkpoints, which are kept; rank 0 checks all files.

    Raises:
        StoreError: one is missing or damaged.
    """
    folder, rank, tables = session.folder, session.comm.rank, []
    for round in retained_rounds[:-1]:
        at, contents = folder_of(folder.checkpoints, round), None
        if rank == 0:
            try:
                files = read_files(find(folder.checkpoints, round))
                contents = {name: content for name, content in files if is_row_table(name)}
            except StoreError as e:
                raise StoreError(
                    f"{e}, or remove this one's folder to resume from round {retained_rounds[-1]}"
                ) from e
            session.checkpointer.keep_segments(at, contents)
        tables.append(Table.load(at, folder.stores, contents, only=rank))
    return tables


def _rewind(session: RankSession, newest: Checkpoint, log: bytes, job: bytes) -> None:
    """Delete everything that was written after the checkpoint ``newest``; on rank 0 alone.

    The order of the steps leaves the run resumable if a kill interrupts it between any two.
    """
    folder = session.folder
    delete_newer(folder.checkpoints, newest.round)
    if folder.job_content() != job:
        folder.write_job(job, advice=STANDS)
    session.checkpointer.prune_stores()
    truncate_log(folder.log, log)
