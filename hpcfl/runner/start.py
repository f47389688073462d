"""Where a start of the program begins: at nothing, or at a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from hpcfl.checkpoint import buffers
from hpcfl.checkpoint.format import read_kept, read_server
from hpcfl.checkpoint.verify import verify
from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.errors import JobError, StoreError
from hpcfl.io.atomic import STANDS, write_file
from hpcfl.io.files import READABLE, read_bytes
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import NOTHING, cut, require
from hpcfl.run_dir.manifest import (
    Checkpoint,
    check_files,
    check_run_files,
    find,
    folder_of,
    give_up,
    prune,
    rounds,
)
from hpcfl.runner.components import Components
from hpcfl.runner.copy_run import branch
from hpcfl.runner.life import RankSession
from hpcfl.runner.resume_request import ResumeRequest
from hpcfl.signals import set_resumable
from hpcfl.store.row_table import Table


class Beginning(NamedTuple):
    """Where one start of the program begins."""

    server: Any
    round: int
    """Rounds completed."""
    kept: Mapping[str, Tensor]
    """What else a checkpoint kept."""


class Way(NamedTuple):
    """How a start of the program comes to its beginning."""

    begin: Callable[[RankSession], Beginning]
    resumed: bool
    """Whether at a checkpoint."""


Choice = Callable[[Comm], Way]


def as_found(folder: RunDir, comm: Comm) -> Way:
    """Collective: at the newest checkpoint of the folder if there is one, else at nothing.

    Raises:
        JobError: there are checkpoints, but no job.
    """
    found = ""
    with raise_collectively(comm):
        # The others may see a network's file system as it was some time ago.
        if comm.rank == 0 and folder.begun:
            folder.require()
            found = "a checkpoint"
    return Way(going_on, resumed=True) if comm.bcast(found) else Way(anew, resumed=False)


def anew(life: RankSession) -> Beginning:
    """Collective: begin a run in a directory of its own.

    Raises:
        JobError: the directory cannot be written, or holds a run.
        DiskError: the disk is full or fails.
    """
    parts, folder = life.parts, life.folder
    with raise_collectively(life.comm):
        if life.comm.rank == 0:
            folder.claim(parts.loaded.tree)
            life.run_files = folder.write_initial(parts.x0)
            buffers.write(folder.buffers, parts.buffers)
            # Of a start that died before its first checkpoint.
            cut(folder.log, NOTHING)
            life.best.restore(None)
            life.prune_stores([])
            life.require_room()
            folder.hold()
    set_resumable(folder.root)  # a checkpoint that stands there is this run's own
    life.comm.beat(folder.ranks, life.name)
    life.open_store()
    with raise_collectively(life.comm):
        life.reserve()
    server = parts.algorithm.init_server(parts.x0)
    life.save(0, server, {}, NOTHING, lambda: None)
    life.settle(0)
    return Beginning(server, 0, {})


def going_on(life: RankSession) -> Beginning:
    """Collective: begin at the newest checkpoint of the life's own job.

    Raises:
        JobError, StoreError: see ``ResumeRequest``; nothing was changed.
    """
    with raise_collectively(life.comm):
        request = ResumeRequest.to_continue(life.folder, life.parts.loaded)
    return again(life, request)


def again(life: RankSession, request: ResumeRequest) -> Beginning:
    """Collective: begin at a checkpoint that any number of ranks wrote, all of it verified.

    Later checkpoints are given up only then.  Where the life's folder is not the request's, it
    becomes a copy of it first.

    Raises:
        JobError, StoreError: see ``ResumeRequest``; nothing was changed.
    """
    parts, comm, folder = life.parts, life.comm, life.folder
    rows = request.rows
    if folder.root != request.source.root:
        _copy(life, request)
        rows = False  # were compared in the copy
    names = ""
    with raise_collectively(comm):
        if comm.rank == 0:
            folder.lock()
            if read_bytes(folder.job, READABLE) not in (request.found, request.wanted):
                raise JobError(f"{folder.job}: was changed while it was read; resume again")
            folder.entries()  # whose damage would be found too late when this start is added
            kept = request.chosen(folder, life.inputs)
            prune(folder.checkpoints)
            _require_whole(folder.checkpoints, kept)
            names = " ".join(map(str, kept))
    comm.beat(folder.ranks, life.name)
    kept = [int(name) for name in comm.bcast(names).split()]
    with raise_collectively(comm), request.offering(kept):
        newest = find(folder.checkpoints, kept[-1])
        server = read_server(newest, parts.schema.server, parts.device)
        beside = read_kept(newest, parts.device)
        if comm.rank == 0:
            require(folder.log, newest.log)
        table = Table.load(newest.folder, folder.stores)
        own = np.flatnonzero(life.owner == comm.rank)
        verify(table, parts.stored, own, rows=rows, speak=comm.rank == 0)
    folders = [folder_of(folder.checkpoints, round) for round in kept]
    with raise_collectively(comm):
        life.run_files = newest.run_files
        life.parts = _put_back(parts, folder, newest)
        if comm.rank == 0 and rounds(folder.checkpoints) == kept:
            life.prune_stores(folders)  # makes room, if this life is to copy states
    life.open_store()
    with raise_collectively(comm):
        life.take_over(newest, folders)
    with raise_collectively(comm):
        if comm.rank == 0:
            _go_back(life, newest, folders, request.wanted)
    return Beginning(server, newest.round, beside)


def _copy(life: RankSession, request: ResumeRequest) -> None:
    """Collective: make the life's folder, a branch of the request's run."""
    comm, source = life.comm, request.source
    names = ""
    with raise_collectively(comm):
        if comm.rank == 0:
            names = " ".join(map(str, request.chosen(source, life.inputs)))
    kept = [int(name) for name in comm.bcast(names).split()]
    with request.offering(kept), raise_collectively(comm):
        at = find(source.checkpoints, kept[-1])
        check_files(at)
    with raise_collectively(comm):
        _put_back(life.parts, source, at)  # may be what cannot be read
    with request.offering(kept):
        branch(source, at, life.folder.root, life.parts.stored, comm, request.wanted)


def _put_back(parts: Components, folder: RunDir, at: Checkpoint) -> Components:
    """The parts with the initial model of the run, and its buffers."""
    check_run_files(at, folder.root)
    buffers.read(folder.buffers, parts.buffers)
    return replace(parts, x0=folder.read_initial(parts.x0).to(parts.device))


def _require_whole(root: Path, kept: Sequence[int]) -> None:
    """Check the files of the older checkpoints, which stay and must not fail a later save."""
    for round in kept[:-1]:
        try:
            check_files(find(root, round))
        except StoreError as e:
            raise StoreError(
                f"{e}, or remove this one's folder to resume from round {kept[-1]}"
            ) from e


def _go_back(life: RankSession, newest: Checkpoint, kept: Sequence[Path], job: bytes) -> None:
    """Let the directory be that of a run that has come as far as ``newest``; on rank 0 alone.

    In an order that leaves it resumable wherever a kill interrupts it.
    """
    folder = life.folder
    give_up(folder.checkpoints, newest.round)
    if folder.job.read_bytes() != job:
        write_file(folder.job, job, advice=STANDS)
    life.prune_stores(list(kept))
    cut(folder.log, newest.log)
    life.best.restore(newest.best)
    folder.hold()
