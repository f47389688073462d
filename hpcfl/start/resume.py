"""Resume a run: from the newest checkpoint of its directory, or as a ``ResumeRequest`` says."""

from collections.abc import Callable, Mapping, Sequence

from hpcfl.checkpoint import buffers, initial
from hpcfl.checkpoint.format import read_checkpoint
from hpcfl.checkpoint.verify import verify_states
from hpcfl.comm.base import Comm
from hpcfl.comm.failure import from_rank_0, raise_collectively
from hpcfl.errors import JobError, StoreError
from hpcfl.io.atomic import STANDS
from hpcfl.runs.branches import parse_branches
from hpcfl.runs.client_table import table_until, truncate_table
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import require_log_prefix, truncate_log
from hpcfl.runs.manifest import (
    BEST,
    BRANCHES,
    FUNCTION,
    INITIAL,
    Checkpoint,
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
from hpcfl.start.components.components import Components
from hpcfl.start.early_end import ending_settings
from hpcfl.start.resume_request import ResumeRequest
from hpcfl.start.session import RankSession, StartPoint
from hpcfl.store.row_table import Table, is_row_table


def resume_latest(session: RankSession) -> StartPoint:
    """Collective: resume from the newest checkpoint of the session's folder (``--continue``).

    Raises:
        JobError, StoreError: see ``ResumeRequest``; nothing was changed.
    """
    with raise_collectively(session.comm):
        request = ResumeRequest.of_job(session.folder, session.components)
    return resume_from(session, request)


def resume_from(session: RankSession, request: ResumeRequest) -> StartPoint:
    """Collective: resume from a checkpoint that any number of ranks wrote.

    All of it is verified before anything is changed; then later checkpoints are deleted.

    Raises:
        JobError, StoreError: see ``ResumeRequest``; nothing was changed.
    """
    components, comm, folder = session.components, session.comm, session.folder
    with raise_collectively(comm):
        request.require_block_size(components)
    retained_rounds, newest = agree_on_checkpoint(comm, folder, lambda: _lock(session, request))
    comm.start_heartbeats(folder.ranks.absolute(), session.session_id)
    with raise_collectively(comm):
        # Before the server and states are read: here a model of edited code is named as such.
        components, run_files = with_initial_model(components, folder, newest)
    function = session.agree_on_function(components, folder, run_files.get(FUNCTION))
    with raise_collectively(comm), request.suggest_older(retained_rounds):
        found = read_checkpoint(newest, components.training.schema.server, components.device)
        log = b""
        if comm.rank == 0:
            log = require_log_prefix(folder.log, newest.log)
        table = Table.load(newest.folder, folder.stores, found.row_tables)
        if table.ranks != newest.ranks:
            raise StoreError(
                f"{newest.folder}: row tables of {table.ranks} ranks, expected {newest.ranks}"
            )
        verify_states(
            table,
            components.training.stored_state,
            session.my_clients,
            rows=request.verify_states,
            show_progress=comm.rank == 0,
        )
    checkpointer = session.checkpointer
    with raise_collectively(comm):
        older = _older_tables(session, retained_rounds)
        session.request = request.recorded
        session.components = components
        if comm.rank == 0:
            checkpointer.run_files = _with_function(folder, newest, function)
            if BRANCHES in run_files:
                session.branches = parse_branches(folder.branches, run_files[BRANCHES])
            checkpointer.keep_segments(newest.folder, found.row_tables)
            checkpointer.record_opening(session.session_id)
            if rounds(folder.checkpoints) == retained_rounds:
                checkpointer.prune_stores()  # makes room, if this start copies states
    ended = _why_ended(newest, components)
    finished = bool(ended) or newest.round == components.job.rounds
    session.open_store()
    if not finished:  # else nobody reads states: on other ranks they would be copied in vain
        with raise_collectively(comm):
            checkpointer.restore(table, older)
    with raise_collectively(comm):
        if comm.rank == 0:
            _rewind(session, newest, log, request.job_after)
            # As a commit would.  Not where a job's file merely leaves out checkpoint.keep.
            if finished and request.overrides:
                checkpointer.prune()
            checkpointer.best.restore(found.best, newest.folder / BEST)
            folder.hold_open()
    return StartPoint(found.server, newest.round, log, ended)


def agree_on_checkpoint(
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
    # These fail now, not when this start is added or the table is cut, if a file is damaged.
    folder.history_entries()
    kept, newest = request.checkpoint(session.inputs)
    table_until(folder.clients, newest.round, newest.table_lines)
    prune(folder.checkpoints)
    return kept, newest


def with_initial_model(
    components: Components, folder: RunDir, at: Checkpoint
) -> tuple[Components, dict[str, bytes]]:
    """The components with the initial model of the run in ``folder``, and its buffers.

    Returns:
        The components, and the content of the files that no round changes, by name.
    """
    run_files = read_run_files(at, folder.root)
    buffers.read(folder.buffers, components.model.buffers)
    x0 = initial.read(folder.initial, run_files[INITIAL], components.model.x0)
    return components.with_initial(x0.to(components.device)), run_files


def _with_function(folder: RunDir, at: Checkpoint, function: bytes) -> Mapping[str, int]:
    """The checksums of the files that no round changes; a run of an earlier version gets one more.

    Args:
        folder: of the run.
        at: the checkpoint to begin at.
        function: the content of the file, if it is to be written.
    """
    if FUNCTION in at.run_files:
        return at.run_files
    return {**at.run_files, **folder.write_function(function)}


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


def _why_ended(newest: Checkpoint, components: Components) -> str:
    """Why the run ended there, if its settings still say so; empty if it goes on."""
    by = ending_settings(components.loaded)
    return newest.ended.get("reason", "") if newest.ended.get("by") == by else ""


def _rewind(session: RankSession, newest: Checkpoint, log: bytes, job: bytes) -> None:
    """Delete everything that was written after the checkpoint ``newest``; on rank 0 alone.

    The order of the steps leaves the run resumable if a kill interrupts it between any two: the
    newer checkpoints go first, as they need the log and the segments that are cut after them, and
    the job may name other rounds only when none of them is left.
    """
    folder = session.folder
    delete_newer(folder.checkpoints, newest.round)
    if folder.job_content() != job:
        folder.write_job(job, advice=STANDS)
    session.checkpointer.prune_stores()
    truncate_log(folder.log, log)
    truncate_table(folder.clients, newest.round, newest.table_lines)
