"""Where a start of the program begins: at nothing, or at a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import yaml
from torch import Tensor

from hpcfl import buffers, jobfile
from hpcfl.assemble import Parts
from hpcfl.branch import branch
from hpcfl.changes import differences, require_free
from hpcfl.checkpoint import (
    Checkpoint,
    check_files,
    find,
    folder_of,
    give_up,
    prune,
    read_kept,
    read_server,
    rounds,
)
from hpcfl.comm.together import together
from hpcfl.compare import flat
from hpcfl.errors import JobError, StoreError
from hpcfl.job import Loaded, load
from hpcfl.life import Life
from hpcfl.rundir import RunDir
from hpcfl.runlog import NOTHING, cut, require
from hpcfl.store.durable import STANDS, write_file
from hpcfl.store.rows import Table
from hpcfl.verify import verify


class Beginning(NamedTuple):
    """Where one start of the program begins."""

    server: Any
    round: int
    """Rounds completed."""
    kept: Mapping[str, Tensor]
    """What else a checkpoint kept."""


def anew(life: Life) -> Beginning:
    """Collective: begin a run in a directory of its own.

    Raises:
        JobError: the directory cannot be written, or holds a run.
        StoreError: the disk is full or fails.
    """
    parts, folder = life.parts, life.folder
    with together(life.comm):
        if life.comm.rank == 0:
            folder.claim(parts.loaded.tree)
            folder.write_initial(parts.x0)
            buffers.write(folder.buffers, parts.buffers)
            # Of a start that died before its first checkpoint.
            cut(folder.log, NOTHING)
            life.best.restore(None)
            life.prune_stores([])
            life.require_room()
    life.comm.beat(folder.ranks, life.name)
    life.open_store()
    with together(life.comm):
        life.reserve()
    server = parts.algorithm.init_server(parts.x0)
    life.save(0, server, {}, NOTHING, lambda: None)
    life.settle(0)
    return Beginning(server, 0, {})


@dataclass(frozen=True)
class Request:
    """What is asked of a run that is to be taken up again."""

    source: RunDir
    loaded: Loaded
    """The job as it is to go on."""
    found: bytes
    """job.yaml, as it was found."""
    wanted: bytes
    """And as it is to be."""
    round: int | None
    """The checkpoint to begin at; None is the newest."""
    rows: bool
    """Whether all client states are read first."""

    @classmethod
    def of(cls, source: RunDir, overrides: Sequence[str], *, round: int | None, rows: bool) -> Self:
        """Check what can be told from the job alone.

        Raises:
            JobError: it is no run, or the overrides are wrong or would change past rounds.
        """
        source.require()
        before = flat(load(source.job).tree)
        found, loaded = source.job.read_bytes(), load(source.job, overrides)
        after = flat(loaded.tree)
        require_free(before, after, source.root)
        file = jobfile.read(source.job)
        changes = differences(before, after)
        for key, value in changes.items():
            file.put(tuple(key.split(".")), value, "command line")
        wanted = yaml.safe_dump(jobfile.plain(file.tree), sort_keys=False).encode()
        return cls(source, loaded, found, wanted if changes else found, round, rows)

    def chosen(self, folder: RunDir) -> list[int]:
        """The rounds that are kept in ``folder``, up to the one to begin at.

        Raises:
            JobError: that round is not kept, the rounds asked for are done, or job.yaml changed.
            StoreError: there is no checkpoint, or a damaged one.
        """
        kept = rounds(folder.checkpoints, self.round)
        with self.offering(kept):
            newest = find(folder.checkpoints, kept[-1])
        if newest.job != folder.mark:
            raise JobError(
                f"{folder.job}: was changed after the checkpoint of round {newest.round}; put it "
                "back, or run the changed job into another directory"
            )
        if self.loaded.job.rounds < newest.round:
            raise JobError(
                f"rounds: {self.loaded.job.rounds} are asked for, but {newest.round} are done; ask "
                "for as many, or begin at an older checkpoint with --round: kept are "
                + ", ".join(map(str, kept))
            )
        return kept

    @contextmanager
    def offering(self, kept: Sequence[int]) -> Iterator[None]:
        """Add, to what is wrong with the last of ``kept``, how to begin at the one before."""
        try:
            yield
        except StoreError as e:
            if len(kept) > 1:
                offer = f"the one before: `hpcfl resume {self.source.root} --round {kept[-2]}`"
            else:
                offer = "no older one is kept: run the job again into another directory"
            e.args = (f"{e}; {offer}",)  # the same error: which ranks raise it stays known
            raise


def again(life: Life, request: Request) -> Beginning:
    """Collective: begin at a checkpoint that any number of ranks wrote, all of it verified.

    Later checkpoints are given up only then.  Where the life's folder is not the request's, it
    becomes a copy of it first.

    Raises:
        JobError, StoreError: see ``Request``; nothing was changed.
    """
    parts, comm, folder = life.parts, life.comm, life.folder
    rows = request.rows
    if folder.root != request.source.root:
        _copy(life, request)
        rows = False  # were compared in the copy
    names = ""
    with together(comm):
        if comm.rank == 0:
            folder.lock()
            if folder.job.read_bytes() not in (request.found, request.wanted):
                raise JobError(f"{folder.job}: was changed while it was read; resume again")
            folder.entries()  # whose damage would be found too late when this start is added
            kept = request.chosen(folder)
            prune(folder.checkpoints)
            _require_whole(folder.checkpoints, kept)
            names = " ".join(map(str, kept))
    comm.beat(folder.ranks, life.name)
    kept = [int(name) for name in comm.share(names).split()]
    with together(comm), request.offering(kept):
        newest = find(folder.checkpoints, kept[-1])
        server = read_server(newest, parts.schema.server, parts.device)
        beside = read_kept(newest, parts.device)
        if comm.rank == 0:
            require(folder.log, newest.log)
        table = Table.load(newest.folder, folder.stores)
        own = np.flatnonzero(life.owner == comm.rank)
        verify(table, parts.stored, own, rows=rows, speak=comm.rank == 0)
    folders = [folder_of(folder.checkpoints, round) for round in kept]
    with together(comm):
        life.parts = _put_back(parts, folder)
        if comm.rank == 0 and rounds(folder.checkpoints) == kept:
            life.prune_stores(folders)  # makes room, if this life is to copy states
    life.open_store()
    with together(comm):
        life.take_over(newest, folders)
    with together(comm):
        if comm.rank == 0:
            _go_back(life, newest, folders, request.wanted)
    return Beginning(server, newest.round, beside)


def _copy(life: Life, request: Request) -> None:
    """Collective: make the life's folder, a branch of the request's run."""
    comm, source = life.comm, request.source
    names = ""
    with together(comm):
        if comm.rank == 0:
            names = " ".join(map(str, request.chosen(source)))
    kept = [int(name) for name in comm.share(names).split()]
    with together(comm):
        _put_back(life.parts, source)  # may be what cannot be read
    with request.offering(kept):
        with together(comm):
            at = find(source.checkpoints, kept[-1])
            check_files(at)
        branch(source, at, life.folder.root, life.parts.stored, comm, request.wanted)


def _put_back(parts: Parts, folder: RunDir) -> Parts:
    """The parts with the initial model of the run, and its buffers."""
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


def _go_back(life: Life, newest: Checkpoint, kept: Sequence[Path], job: bytes) -> None:
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
