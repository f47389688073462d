"""Step 5 of a start: make the run directory, or go back to a checkpoint."""

from hpcfl.checkpoint import buffers, initial
from hpcfl.comm.failure import raise_collectively
from hpcfl.io.signals import set_resumable
from hpcfl.runs.client_table import truncate_table
from hpcfl.runs.log import truncate_log
from hpcfl.runs.manifest import INITIAL
from hpcfl.start.checks.disk import check_clients, check_disk_space, disk_budget, simulate_schedule
from hpcfl.start.checks.memory import check_memory
from hpcfl.start.copy_run import copy_run
from hpcfl.start.request import StartRequest
from hpcfl.start.resume import resume_from, resume_latest
from hpcfl.start.session import RankSession, StartPoint


def begin(session: RankSession, request: StartRequest) -> StartPoint:
    """Collective: step 5, make the run directory, or verify a checkpoint and go back to it."""
    if request.resume is not None:
        asked = request.resume
        return resume_from(session, copy_run(session, asked) if asked.copied else asked)
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
