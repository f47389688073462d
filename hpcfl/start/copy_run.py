"""Copy a run as of one of its checkpoints; the copy is complete, or not there at all.

The copy continues the run, or is a branch of it: then other settings begin at the checkpoint.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from hpcfl.checkpoint.verify import verify_states
from hpcfl.comm.failure import raise_collectively
from hpcfl.engine.dry_round import dry_round
from hpcfl.errors import DiskError, HpcflError, JobError, StoreError, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import PART, make_folder, sync_folder, write_by, write_file
from hpcfl.io.files import present
from hpcfl.job.schema import Job
from hpcfl.runs.branches import Branch, parse_branches, write_branches
from hpcfl.runs.client_table import table_until
from hpcfl.runs.job_file.settings import flatten, written
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import require_log_prefix
from hpcfl.runs.manifest import (
    BRANCHES,
    FUNCTION,
    MANIFEST,
    Checkpoint,
    read_files,
    write_manifest,
)
from hpcfl.runs.names import FOLDER, require_kind
from hpcfl.runs.requests import is_done
from hpcfl.start.components.components import Components
from hpcfl.start.components.training import carrying
from hpcfl.start.resume import agree_on_checkpoint, with_initial_model
from hpcfl.start.resume_request import ResumeRequest
from hpcfl.start.session import RankSession
from hpcfl.store.row_table import Table


def require_absent(copy: Path, request: ResumeRequest) -> None:
    """Refuse a path for a copy that exists.

    Raises:
        JobError: it does.
    """
    if not present(copy):
        return
    line = f"{copy}: exists already; choose another place for the copy with --out"
    if request.recorded and present(copy / "job.yaml"):
        entries = RunDir(copy).read_history()
        if is_done(entries, request.recorded, request.source.root):
            line += f"; the same command made it; to go on: `hpcfl resume {quote(str(copy))}`"
    raise JobError(line)


def copy_run(session: RankSession, request: ResumeRequest) -> ResumeRequest:
    """Collective: copy a run to the session's folder as of a checkpoint, compare every checksum.

    The run, alive or not, is only read.  All ranks copy segments.  Hard links would not do: both
    runs write rows in place.

    Returns:
        The request to resume the copy.

    Raises:
        StoreError: the checkpoint is damaged.
        JobError: see ``ResumeRequest.checkpoint``; or the checkpoint was deleted meanwhile, or the
            copy exists, is being made or cannot be made, or a branch cannot begin there.
    """
    comm, source, copy = session.comm, request.source, session.folder
    kept, at = agree_on_checkpoint(comm, source, partial(request.checkpoint, session.inputs))
    with raise_collectively(comm):
        components, run_files = with_initial_model(session.components, source, at)
    session.agree_on_function(components, source, run_files.get(FUNCTION))
    branch, job = Branch(str(source.root.absolute()), at.round, ()), request.job_after
    with raise_collectively(comm):
        if request.parent is not None:
            tree = components.loaded.tree  # its defaults are resolved
            branch = Branch.of(source.root, at.round, flatten(request.parent.tree), flatten(tree))
            _require_branch(components, request.parent.job, source, at.round)
            job = source.job_text(tree)
    with (
        request.suggest_older(kept),
        RunDir(copy.root.with_name(f".{copy.root.name}{PART}")) as part,
    ):
        with raise_collectively(comm), _while_kept(source, at):
            if comm.rank == 0:
                copy.refuse_inside_run()
                _clear(part)
        try:
            with raise_collectively(comm), _while_kept(source, at):
                if comm.rank == 0:
                    _copy_files(request, at, part, job, run_files, branch)
                    copy.history_note = source.history_note
            with raise_collectively(comm), _while_kept(source, at):
                for path in _segments(Table.load(at.folder, source.stores))[comm.rank :: comm.size]:
                    _copy(path, part.stores / path.relative_to(source.stores))
            with raise_collectively(comm), _while_kept(source, at):
                _compare(session, source, at, part)
            with raise_collectively(comm), _while_kept(source, at):
                if comm.rank == 0:
                    _finish(request, at, part, copy.root)
        except HpcflError:  # on all ranks
            if comm.rank == 0:
                shutil.rmtree(part.root, ignore_errors=True)
            raise
    return request.of_copy(copy, job)


@contextmanager
def _while_kept(source: RunDir, at: Checkpoint) -> Iterator[None]:
    """Turn failures into one line; the cause may be that the run deleted the checkpoint."""
    try:
        yield
    except (OSError, DiskError, StoreError) as e:
        if not present(at.folder / MANIFEST):
            raise JobError(
                f"{source.root}: the run deleted the checkpoint of round {at.round} "
                "while it was copied; try again, or raise its checkpoint.keep"
            ) from e
        if isinstance(e, FileNotFoundError):
            raise StoreError(
                f"{e.filename}: the file is missing, expected a part of the checkpoint of round "
                f"{at.round}; resume from an older checkpoint"
            ) from e
        if isinstance(e, OSError):
            message = (
                f"{e.filename2 or e.filename}: cannot be copied: {e.strerror}; make room, or "
                "choose another place with --out"
            )
            raise file_error(e, message, JobError) from e
        raise


def _clear(part: RunDir) -> None:
    """Make the folder that becomes the copy, or empty the one that a killed start left.

    Raises:
        JobError: it holds what no start of a copy has written.
    """
    require_kind(part.root, FOLDER, of="copy")
    part.refuse_foreign(alone=True)
    make_folder(part.root)
    part.lock("another start that copies")
    for path in part.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != part.lock_file:
            path.unlink()
    part.checkpoints.mkdir()
    part.stores.mkdir()


def _copy_files(
    request: ResumeRequest,
    at: Checkpoint,
    part: RunDir,
    job: bytes,
    run_files: Mapping[str, bytes],
    branch: Branch,
) -> None:
    """All but the segments; what is written was compared with its checksum as it was read."""
    source, run_files = request.source, dict(run_files)
    if branch.changes:
        earlier = run_files.get(BRANCHES)
        branches = () if earlier is None else parse_branches(source.branches, earlier)
        run_files[BRANCHES] = write_branches([*branches, branch])
    for name, content in run_files.items():
        _put(part.root / name, content)
    _put(part.job, job)
    if present(source.buffers):
        _put(part.buffers, regular.read(source.buffers))
    for path in sorted(source.kept.glob("*")):
        _copy(path, part.kept / path.name)
    _put(part.log, require_log_prefix(source.log, at.log))
    if table := table_until(source.clients, at.round, at.table_lines):
        _put(part.clients, table)
    history = source.read_history(for_start=True)
    part.write_history(entry for entry in history if entry.get("round", 0) <= at.round)
    asked = request.recorded.entry if request.recorded else {}
    part.add_to_history(branch.entry | asked)
    folder = part.checkpoints / at.folder.name
    for name, content in read_files(at):
        _put(folder / name, content)
    sums = {name: crc32(content) for name, content in run_files.items()}
    # A branch has rounds of its own to do, whatever ended the run that it leaves.
    ended = {} if branch.changes else at.ended
    copied = at._replace(job=part.job_fingerprint, run_files=sums, ended=ended)
    _put(folder / MANIFEST, write_manifest(copied))


def _put(path: Path, content: bytes) -> None:
    """Write a file; the copy takes effect by a later rename of the whole folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)


def _segments(table: Table) -> list[Path]:
    return [*table.paths, *(_segments(table.shared) if table.shared else [])]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with regular.open_binary(source) as file:
        write_by(target, lambda copy: shutil.copyfileobj(file, copy))


def _compare(session: RankSession, source: RunDir, at: Checkpoint, part: RunDir) -> None:
    """Compare the states of the copy with their checksums; every rank checks a part of them.

    Raises:
        StoreError: one is wrong; if the original is damaged itself, the message names it.
    """

    def check(folder: Path, run: RunDir) -> None:
        table, comm = Table.load(folder, run.stores), session.comm
        share = np.array_split(table.clients, comm.size)[comm.rank]
        schema = session.components.training.stored_state
        verify_states(table, schema, share, rows=True, show_progress=comm.rank == 0)

    try:
        check(part.checkpoints / at.folder.name, part)
    except StoreError:
        check(at.folder, source)
        raise


def _finish(request: ResumeRequest, at: Checkpoint, part: RunDir, copy: Path) -> None:
    """Rename the copy into place, if the run still keeps the checkpoint."""
    (at.folder / MANIFEST).stat()
    require_absent(copy, request)
    # All names in the folders are on the disk before the copy has its own.
    for folder in (path for path in part.root.rglob("*") if path.is_dir()):
        sync_folder(folder)
    sync_folder(part.root)
    part.root.rename(copy)
    sync_folder(copy.parent)


def _require_branch(components: Components, job: Job, source: RunDir, round: int) -> None:
    """Refuse a branch that has no round left, or states of another form than its parent's.

    Raises:
        JobError: it has, or what precedes round 1 would have been another: the first server, or a
            warm start, which only one of the two has.
    """
    algorithm, model, parent = components.job.algorithm, components.model, job.algorithm
    x0, statistics, descent = model.x0, model.initial_statistics, job.local.descent(model.layout)
    former = carrying(job, parent.with_facts(algorithm.facts), statistics, descent)
    before = dry_round(former, x0.numel(), x0.dtype, descent)
    if before.form != components.training.schema.form:
        why = "the states of the server or of the clients would have another form"
    elif parent.warm_start != algorithm.warm_start:
        why = "the states before round 1 would have been others"
    elif not _same(*(one.init_server(x0) for one in (former, components.training.algorithm))):
        why = "it begins with the parent's server, which had the other value"
    else:
        why = ""
    if why:
        changes = ", ".join(
            f"{field.name} {written(getattr(parent, field.name))} -> {written(value)}"
            for field in fields(algorithm)
            if (value := getattr(algorithm, field.name)) != getattr(parent, field.name)
        )
        name = components.loaded.names["algorithm"]
        raise JobError(
            f"algorithm: {name} cannot branch with {changes}: {why}; start a new run with them"
        )
    if round == components.job.rounds:
        raise JobError(
            f"rounds: a branch at round {round} of {source.root} has no round left; "
            "begin at an older checkpoint with --round, or set rounds to more"
        )


def _same(first: Any, second: Any) -> bool:
    """Whether two servers have the same tensors."""
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple):
        return all(map(_same, first, second))
    return bool(first == second)
