"""The store on a disk of the node; a snapshot copies changed states to the run directory.

Rounds save states on the node's disk, which may be lost with the node.  A resume reads the run
directory alone.
"""

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from hpcfl.errors import StoreError, file_error
from hpcfl.store.base import ClientStore
from hpcfl.store.hdf5 import Hdf5Store, PinnedState
from hpcfl.store.row_table import Table


class ScratchStore(ClientStore):
    """A store on the node's disk in front of one in the run directory.

    Args:
        scratch: the store on the node's disk.
        permanent: the store in the run directory.
        folder: of the scratch store's files (``scratch_folder``), removed when it is closed.
    """

    def __init__(self, scratch: Hdf5Store, permanent: Hdf5Store, folder: Path) -> None:
        self._scratch, self._permanent, self._folder = scratch, permanent, folder
        self._on_scratch: set[int] = set()  # clients whose newest state is there
        self._changed: set[int] = set()  # since the last snapshot
        self._copier = ThreadPoolExecutor(1, "store-copy")
        # The rounds and the copier both use the permanent store, which is not thread-safe.
        self._permanent_lock = Lock()
        self._closed = False

    def prefetch(self, clients: Sequence[int]) -> None:
        self._scratch.prefetch([client for client in clients if client in self._on_scratch])
        with self._permanent_lock:
            self._permanent.prefetch([c for c in clients if c not in self._on_scratch])

    def load(self, client: int) -> Any | None:
        if client in self._on_scratch:
            return self._scratch.load(client)
        with self._permanent_lock:
            return self._permanent.load(client)

    def save(self, client: int, state: Any) -> None:
        self._scratch.save(client, state)
        self._on_scratch.add(client)
        self._changed.add(client)

    def snapshot(self, folder: Path) -> "list[Future[None]]":
        pinned = self._scratch.pin(sorted(self._changed))
        self._changed.clear()
        return [self._copier.submit(self._copy, pinned, folder)]

    def retain(self, folders: Iterable[Path]) -> None:
        # No checkpoint names rows of the scratch store: they were pinned for the copier alone.
        self._scratch.retain([])
        with self._permanent_lock:
            self._permanent.retain(folders)

    def require_in_place(self) -> None:
        with self._permanent_lock:
            self._permanent.require_in_place()

    def restore(self, table: Table, ranks: int, older: Sequence[Table] = ()) -> None:
        self._permanent.restore(table, ranks, older)

    def close(self) -> None:
        self._closed = True
        self._copier.shutdown(cancel_futures=True)
        self._scratch.close()
        self._permanent.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, pinned: Iterable[PinnedState], folder: Path) -> None:
        for clients, fetch in pinned:
            if self._closed:
                return
            state = fetch()
            with self._permanent_lock:
                for client in clients:  # consecutively, so that they share a row
                    self._permanent.save(client, state)
        with self._permanent_lock:
            written = self._permanent.snapshot(folder)
        for future in written:
            future.result()


def scratch_folder(disk: Path, run: Path, rank: int) -> Path:
    """Make a folder for a rank's files on the node's disk; closing the store removes it.

    What a killed process leaves there, nothing removes: the site's epilog does, or the user.

    Args:
        disk: the folder that the job names; made if it is missing.
        run: the run directory, whose name is part of the folder's.
        rank: this rank's number, likewise.

    Raises:
        DiskError: the disk is full or fails.
        StoreError: it cannot be made for another reason.
    """
    try:
        disk.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"hpcfl-{run.name}-{rank:04d}-", dir=disk))
    except OSError as e:
        message = f"store.dir: no folder can be made in {disk}: {e.strerror}; choose another"
        raise file_error(e, message, StoreError) from e
