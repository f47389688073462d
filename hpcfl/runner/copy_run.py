"""Copy a run as of one of its checkpoints; the copy is complete, or not there at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from hpcfl.checkpoint.verify import verify_states
from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.errors import DiskError, HpcflError, JobError, StoreError, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import PART, sync_folder, write_by, write_file
from hpcfl.io.files import present
from hpcfl.run_dir.branches import Branch, read_branches, write_branches
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import require_log_prefix
from hpcfl.run_dir.manifest import BRANCHES, MANIFEST, Checkpoint, check_files, write_manifest
from hpcfl.store.row_table import Table
from hpcfl.store.schema import StateSchema


class NewJob(NamedTuple):
    """The job of a copy."""

    content: bytes
    """Of its job.yaml."""
    branch: Branch | None
    """What makes it another run than the original; None: it continues the original."""


def require_absent(copy: Path) -> None:
    """Refuse a path for a copy that exists.

    Raises:
        JobError: it does.
    """
    if present(copy):
        raise JobError(f"{copy}: exists already; choose another place for the copy with --out")


def copy_run(
    source: RunDir, at: Checkpoint, copy: Path, schema: StateSchema, comm: Comm, job: NewJob
) -> None:
    """Collective: copy a run, alive or not, as of a checkpoint, and compare every checksum.

    All ranks copy segments.  Hard links would not do: both runs write rows in place.

    Args:
        source: the run, which is only read.
        at: the checkpoint that the copy will hold.
        copy: the new directory.
        schema: the shape of a client's state.
        comm: the ranks.
        job: the copy's.

    Raises:
        StoreError: the checkpoint is damaged.
        JobError: it was deleted meanwhile, or the copy exists, is being made or cannot be made.
    """
    part = RunDir(copy.with_name(f".{copy.name}{PART}"))
    with part:
        with raise_collectively(comm), _while_kept(source, at):
            if comm.rank == 0:
                RunDir(copy).refuse_inside_run()
                _clear(part)
        try:
            with raise_collectively(comm), _while_kept(source, at):
                if comm.rank == 0:
                    _copy_files(source, at, part, job)
            with raise_collectively(comm), _while_kept(source, at):
                for path in _segments(Table.load(at.folder, source.stores))[comm.rank :: comm.size]:
                    _copy(path, part.stores / path.relative_to(source.stores))
            with raise_collectively(comm), _while_kept(source, at):
                _compare(source, at, part, schema, comm)
            with raise_collectively(comm), _while_kept(source, at):
                if comm.rank == 0:
                    _finish(at, part, copy)
        except HpcflError:  # on all ranks
            if comm.rank == 0:
                shutil.rmtree(part.root, ignore_errors=True)
            raise


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
    part.refuse_foreign(alone=True)
    part.root.mkdir(parents=True, exist_ok=True)
    part.lock("another start that copies")
    for path in part.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != part.lock_file:
            path.unlink()
    part.checkpoints.mkdir()
    part.stores.mkdir()


def _copy_files(source: RunDir, at: Checkpoint, part: RunDir, job: NewJob) -> None:
    """All but the segments."""
    _put(part.job, job.content)
    _put(part.initial, regular.read(source.initial))
    if present(source.buffers):
        _put(part.buffers, regular.read(source.buffers))
    if BRANCHES in at.run_files:
        _put(part.branches, regular.read(source.branches))
    for path in sorted(source.kept.glob("*")):
        _copy(path, part.kept / path.name)
    _put(part.log, require_log_prefix(source.log, at.log))
    part.write_history(e for e in source.history_entries() if e.get("round", 0) <= at.round)
    manifest = regular.read(at.folder / MANIFEST)
    if job.branch is not None:
        branches = write_branches([*read_branches(source.branches), job.branch])
        _put(part.branches, branches)
        run_files = {**at.run_files, BRANCHES: crc32(branches)}
        manifest = write_manifest(at._replace(job=part.job_fingerprint, run_files=run_files))
    entry = {"branch_of": str(source.root.absolute()), "round": at.round}
    part.add_to_history(entry if job.branch is None else job.branch.entry)
    folder = part.checkpoints / at.folder.name
    for name in at.files:
        _put(folder / name, regular.read(at.folder / name))
    _put(folder / MANIFEST, manifest)


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


def _compare(source: RunDir, at: Checkpoint, part: RunDir, schema: StateSchema, comm: Comm) -> None:
    """Compare the copy with its checksums; every rank checks a part of the states.

    Raises:
        StoreError: one is wrong; if the original is damaged itself, the message names it.
    """
    copied = at._replace(folder=part.checkpoints / at.folder.name)
    try:
        _check(copied, part, schema, comm)
    except StoreError:
        _check(at, source, schema, comm)
        raise


def _check(at: Checkpoint, run: RunDir, schema: StateSchema, comm: Comm) -> None:
    if comm.rank == 0:
        check_files(at)
    table = Table.load(at.folder, run.stores)
    share = np.array_split(table.clients, comm.size)[comm.rank]
    verify_states(table, schema, share, rows=True, show_progress=comm.rank == 0)


def _finish(at: Checkpoint, part: RunDir, copy: Path) -> None:
    """Rename the copy into place, if the run still keeps the checkpoint."""
    (at.folder / MANIFEST).stat()
    require_absent(copy)
    for folder in (path for path in part.root.rglob("*") if path.is_dir()):
        sync_folder(folder)
    sync_folder(part.root)
    part.root.rename(copy)
    sync_folder(copy.parent)
