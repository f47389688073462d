"""Write checkpoints: ``begin`` one after a round, ``commit`` it after a later round.

In between, the files are written in the background while the rounds continue.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from torch import Tensor

from hpcfl.checkpoint.best import BestModel
from hpcfl.checkpoint.format import flatten_server
from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.io import regular
from hpcfl.io.atomic import STANDS, sync_folder, write_errors, write_file, write_parts
from hpcfl.io.tensor_file import on_cpu, parts_of
from hpcfl.runs.log import LogPosition
from hpcfl.runs.manifest import (
    BEST,
    MANIFEST,
    SERVER,
    Checkpoint,
    delete,
    delete_older,
    folder_of,
    write_manifest,
)
from hpcfl.store.base import ClientStore
from hpcfl.store.row_table import files as row_tables
from hpcfl.store.row_table import is_row_table, segments_in


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """The contents of a checkpoint besides the clients' states.

    The same on every rank, except where rank 0 is named.
    """

    round: int
    """Rounds completed."""
    server: Any
    """The server's state."""
    job: str
    """The fingerprint of the job; a resume refuses another."""
    inputs: Mapping[str, str]
    """The digests of the job's inputs; a resume refuses others."""
    log: LogPosition
    """The end of the log; on rank 0."""
    table_lines: int
    """The lines of clients.csv; on rank 0."""
    run_files: Mapping[str, int]
    """The crc32 of the files of the run directory that no round changes; on rank 0."""
    ended: Mapping[str, str] = field(default_factory=dict)
    """Why the run ends here, see ``Checkpoint.ended``; empty if it goes on."""
    best: BestModel | None = None
    """The best model so far, if there is one; on rank 0."""


class Committed(NamedTuple):
    """What a commit leaves."""

    kept: list[Path]
    """The folders of the checkpoints that are kept, oldest first."""
    segments: set[str]
    """The segments that the new one names, relative to the folder of the segments; on rank 0."""


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that was begun on every rank and is not yet committed."""

    folder: Path
    contents: CheckpointContents
    written: "list[Future[None]]"
    """Done once this rank has written its part."""

    @property
    def ready(self) -> bool:
        """Whether this rank has written its part."""
        return all(part.done() for part in self.written)

    def commit(
        self, store: ClientStore, comm: Comm, keep: int, require_in_place: Callable[[], None]
    ) -> Committed:
        """Collective: wait until all ranks have written, commit, and delete the oldest checkpoint.

        Args:
            store: this rank's client states.
            comm: the ranks.
            keep: how many checkpoints to keep.
            require_in_place: raises LostFileError if a file that the checkpoint needs is gone;
                called on every rank before anything is committed or deleted.

        Raises:
            LostFileError: nothing was committed, and nothing deleted.
            DiskError: on this rank alone: the disk is full or fails.
            StoreError: on this rank alone: a file cannot be written for another reason.
        """
        for part in self.written:
            part.result()
        # Collective, so after it all ranks have written their part.
        with raise_collectively(comm):
            require_in_place()
        root, names, segments = self.folder.parent, "", set[str]()
        # Rank 0 alone: two writers of one folder on NFS could each miss what the other has done.
        if comm.rank == 0:
            with write_errors(self.folder):
                segments = self._commit(comm.size)
            names = " ".join(delete_older(root, keep))
        # Rank 0 sends the names, because on NFS another host may see an older state of the folder.
        folders = [root / name for name in comm.bcast(names).split()]
        store.retain(folders)
        return Committed(folders, segments)

    def _commit(self, ranks: int) -> set[str]:
        names = [SERVER, *row_tables(self.folder, ranks)]
        if (self.folder / BEST).exists():
            names.append(BEST)
        files, tables = {}, {}
        for name in names:
            if is_row_table(name):
                tables[name] = regular.read(self.folder / name)
                files[name] = crc32(tables[name])
            else:
                files[name] = regular.crc_of(self.folder / name)
        c = self.contents
        checkpoint = Checkpoint(
            self.folder,
            c.round,
            ranks,
            c.job,
            c.log,
            files,
            c.inputs,
            c.run_files,
            c.ended,
            c.table_lines,
        )
        content = write_manifest(checkpoint)
        # The order of the fsyncs is that of what names what.  A loss of power between two of them
        # leaves a folder without a manifest, which does not count: contents of the files (each was
        # fsynced by its writer), their names, and last the manifest, whose rename commits them.
        sync_folder(self.folder)
        write_file(self.folder / MANIFEST, content, advice=STANDS)
        # Only now is the checkpoint sure to be found: the oldest one is deleted after this line.
        sync_folder(self.folder.parent)
        return segments_in(self.folder, tables)


def begin(
    root: Path,
    contents: CheckpointContents,
    store: ClientStore,
    comm: Comm,
    background: Executor,
    sync: Callable[[], None],
) -> PendingCheckpoint:
    """Collective: begin to write a checkpoint, with every rank's client states.

    Args:
        root: the folder of the checkpoints.
        contents: everything but the states.
        store: this rank's client states.
        comm: the ranks.
        background: the executor of rank 0's writes.
        sync: fsyncs the log and the table of clients; called by ``background`` on rank 0.

    Raises:
        DiskError: on this rank alone: the disk is full or fails.
        StoreError: on this rank alone: the folder cannot be made for another reason.
    """
    folder = folder_of(root, contents.round)
    written = []
    if comm.rank == 0:
        with write_errors(folder):
            if folder.is_dir():
                delete(folder)
            folder.mkdir(exist_ok=True)
        # In this thread, as it is the one that computes on a GPU.  On a CPU nothing is copied:
        # nothing changes a server's tensors in place.
        server = {name: on_cpu(x) for name, x in flatten_server(contents.server).items()}
        written.append(background.submit(_write, folder, server, contents.best, sync))
    comm.barrier()  # no rank may write into the folder before rank 0 has made it
    written += store.snapshot(folder)
    return PendingCheckpoint(folder, contents, written)


def _write(
    folder: Path,
    server: Mapping[str, Tensor],
    best: BestModel | None,
    sync: Callable[[], None],
) -> None:
    # Before the manifest, which names their lengths: so much of them must be on the disk.
    sync()
    write_parts(folder / SERVER, parts_of(server), advice=STANDS)
    if best is not None:
        write_parts(folder / BEST, best.pack(), advice=STANDS)
