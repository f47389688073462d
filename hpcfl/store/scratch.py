"""The store on a node's own disk; a commit copies changed states to the run directory.

Rounds read and write the node's disk alone.  What a resume finds is in the run directory.
"""

import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

from hpcfl.io.atomic import write_errors
from hpcfl.store.hdf5 import Hdf5Store, Snapshot
from hpcfl.store.row_table import Table


class ScratchStore:
    """A store on the node's disk in front of one in the run directory.

    Args:
        near: on the node's disk.
        far: in the run directory.
        folder: of near's files, removed when the store is closed.
    """

    def __init__(self, near: Hdf5Store, far: Hdf5Store, folder: Path) -> None:
        self._near, self._far, self._folder = near, far, folder
        self._here: set[int] = set()  # clients whose newest state is near
        self._changed: set[int] = set()  # since the last commit
        self._copier = ThreadPoolExecutor(1, "store-copy")
        self._far_turn = Lock()  # of the rounds and the copier
        self._closed = False

    @property
    def low_on_rows(self) -> bool:
        """Whether rows run out soon: the pending checkpoint must be committed, which frees some."""
        return self._near.low_on_rows

    def ensure_rows(self, rows: Sequence[int]) -> None:
        """Have so many rows on both disks, before they are needed.

        Raises:
            DiskError: a disk is too small for them.
        """
        self._near.ensure_rows(rows)
        self._far.ensure_rows(rows)

    def ensure_free_rows(self, rows: Sequence[int]) -> None:
        """Have so many free rows on both disks.

        Raises:
            DiskError: a disk is too small for them.
        """
        self._near.ensure_free_rows(rows)
        with self._far_turn:
            self._far.ensure_free_rows(rows)

    def prefetch(self, clients: Sequence[int]) -> None:
        """These clients are read next: their states are fetched meanwhile."""
        self._near.prefetch([client for client in clients if client in self._here])
        with self._far_turn:
            self._far.prefetch([client for client in clients if client not in self._here])

    def read(self, client: int) -> Any | None:
        """The state that was written last for the client, or None if it never had one.

        Raises:
            StoreError: its row cannot be read or its checksum is wrong.
        """
        if client in self._here:
            return self._near.read(client)
        with self._far_turn:
            return self._far.read(client)

    def write(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards.

        Raises:
            StoreError: an earlier state could not be written.
        """
        self._near.write(client, state)
        self._here.add(client)
        self._changed.add(client)

    def commit(self, folder: Path) -> "list[Future[None]]":
        """Begin to copy the changed states of now and to write ``folder/rows-RANK.npz``.

        The future raises StoreError if a disk is full or fails.
        """
        frozen = self._near.snapshot(sorted(self._changed))
        self._changed.clear()
        return [self._copier.submit(self._copy, frozen, folder)]

    def retain(self, folders: Iterable[Path]) -> None:
        """These committed checkpoints are kept; rows that only others name may be reused.

        Raises:
            StoreError: a row table is missing or damaged.
        """
        self._near.retain([])
        with self._far_turn:
            self._far.retain(folders)

    def require_in_place(self) -> None:
        """Refuse to commit where a file of the run directory was deleted or replaced.

        Raises:
            LostFileError: one was.
        """
        with self._far_turn:
            self._far.require_in_place()

    def restore(self, table: Table) -> None:
        """Go on with the segments of a checkpoint that the same ranks with the same clients made.

        Raises:
            StoreError: a segment is missing, damaged or in use, or the clients are not the same.
        """
        self._far.restore(table)

    def restore_from_other_ranks(self, table: Table) -> None:
        """Copy the states of this rank's clients from wherever a checkpoint has them.

        Raises:
            StoreError: a state is missing or damaged.
            DiskError: the disk is full or fails.
        """
        self._far.restore_from_other_ranks(table)

    def close(self) -> None:
        """Release the files, and remove those on the node's disk."""
        self._closed = True
        self._copier.shutdown(cancel_futures=True)
        self._near.close()
        self._far.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # what is left goes with the next session
        with suppress(OSError):  # another rank's is there
            for empty in list(self._folder.parents)[:3]:  # the rank's, the session's, the run's
                empty.rmdir()

    def _copy(self, frozen: Iterable[Snapshot], folder: Path) -> None:
        for clients, fetch in frozen:
            if self._closed:
                return
            state = fetch()
            with self._far_turn:
                for client in clients:  # one after the other, so that they share a row
                    self._far.write(client, state)
        with self._far_turn:
            written = self._far.commit(folder)
        for part in written:
            part.result()


def folder_of_session(disk: Path, run: Path, rank: int, session: str) -> Path:
    """A rank's folder on the node's disk, made; those of earlier sessions of the run are removed.

    Args:
        disk: the folder that the job names.
        run: the run directory.
        rank: this rank's number.
        session: a short name that no earlier start of the run had.

    Raises:
        StoreError: it cannot be made.
    """
    place = str(run.absolute())
    root = disk / f"hpcfl-{run.name}-{crc32(place.encode()):08x}"
    folder = root / session / f"{rank:04d}"
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for other in root.iterdir():
            if other.name != session:  # another rank may be removing it too
                shutil.rmtree(other, ignore_errors=True)
    return folder
