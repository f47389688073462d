"""The store on a disk of the node; a snapshot copies changed states to the run directory.

Rounds save states on the node's disk, which may be lost with the node.  A resume reads the run
directory alone.
"""

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

from hpcfl.errors import HpcflError
from hpcfl.io.atomic import write_errors
from hpcfl.io.lock import leads_to, lock, locked
from hpcfl.store.base import ClientStore
from hpcfl.store.hdf5 import Hdf5Store, PinnedState
from hpcfl.store.row_table import Table

_TRIES = 10  # to make a file in a folder that others may find empty and remove


class ScratchStore(ClientStore):
    """A store on the node's disk in front of one in the run directory.

    Args:
        scratch: the store on the node's disk.
        permanent: the store in the run directory.
        folder: of the scratch store's files, closed with the store.
    """

    def __init__(self, scratch: Hdf5Store, permanent: Hdf5Store, folder: "ScratchFolder") -> None:
        self._scratch, self._permanent, self._folder = scratch, permanent, folder
        self._on_scratch: set[int] = set()  # clients whose newest state is there
        self._changed: set[int] = set()  # since the last snapshot
        self._copier = ThreadPoolExecutor(1, "store-copy")
        # The rounds and the copier both use the permanent store, which is not thread-safe.
        self._permanent_lock = Lock()
        self._closed = False

    @property
    def low_on_rows(self) -> bool:
        return self._scratch.low_on_rows

    def ensure_rows(self, rows: Sequence[int], *, free: bool = False) -> None:
        self._scratch.ensure_rows(rows, free=free)
        with self._permanent_lock:
            self._permanent.ensure_rows(rows, free=free)

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

    def restore(self, table: Table, ranks: int, rows: Sequence[int]) -> None:
        self._scratch.ensure_rows(rows)
        self._permanent.restore(table, ranks, rows)

    def close(self) -> None:
        self._closed = True
        self._copier.shutdown(cancel_futures=True)
        self._scratch.close()
        self._permanent.close()
        self._folder.close()

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


class ScratchFolder:
    """A rank's folder on the node's disk, DISK/hpcfl-RUN-DIGEST/SESSION/RANK/NAME.

    The file NAME.HOST.lock beside it is locked until the folder is closed or the process ends.  It
    is locked before the folder is made: a folder whose lock nobody holds is what a killed session
    left.  The name has the host because some file systems, also shared ones, have locks that other
    hosts do not see.

    Args:
        disk: the folder that the job names.
        run: the run directory.
        rank: this rank's number.
        session_id: a short name that no earlier start of the run had.
        name: of the store.

    Raises:
        DiskError: the disk is full or fails.
        StoreError: it cannot be made for another reason.
    """

    def __init__(self, disk: Path, run: Path, rank: int, session_id: str, name: str) -> None:
        # Runs of one name in different places may use the same node's disk.
        path = str(run.absolute())
        root = disk / f"hpcfl-{run.name}-{crc32(path.encode()):08x}"
        self.path = root / session_id / f"{rank:04d}" / name
        self._lock = self.path.with_name(f"{name}{_suffix()}")
        # Before anything is written, as it may be these that fill the disk.
        with ExitStack() as stack:
            with suppress(HpcflError):  # a full disk may have no room for the lock
                # A rank waits for another that is removing them.
                stack.enter_context(locked(disk / f".hpcfl-{os.geteuid()}"))
            _remove_other_sessions(root, session_id)
            _remove_unlocked(disk)
        with write_errors(self.path):
            self._fd = _hold(self._lock)
            try:
                self.path.mkdir(parents=True)
            except OSError:
                self.close()
                raise

    def close(self) -> None:
        """Remove it and release its lock."""
        # A later session removes what cannot be removed now.
        _remove(self._lock)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _suffix() -> str:
    """What follows the name of a folder in the name of its lock."""
    return f".{socket.gethostname()}.lock"


def _hold(path: Path) -> int | None:
    """Make and lock a file; return its descriptor, or None where there are no locks."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # the folder was empty, and another process removed it
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            if lock(fd, fcntl.LOCK_EX):
                os.close(fd)
                path.unlink()  # without it nobody removes the folder
                return None
            if leads_to(path, fd):
                return fd
            os.close(fd)  # another process found it unlocked, and has removed it
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _remove_other_sessions(root: Path, session_id: str) -> None:
    """Remove what earlier sessions of the run left, on any host and without a lock, too.

    A session that is alive is of another container, whose run directory has the same path there.
    """
    with suppress(OSError):
        for other in root.iterdir():
            if other.name != session_id and not _is_alive(other):
                shutil.rmtree(other, ignore_errors=True)  # another rank may be removing it, too


def _is_alive(session: Path) -> bool:
    """Whether a process that this host knows holds the lock of a folder of a session."""
    for path in session.glob("*/*.lock"):
        with suppress(OSError):  # another rank has removed it
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
    return False


def _remove_unlocked(disk: Path) -> None:
    """Remove what killed sessions of other runs left, of this user and on this host."""
    locks: list[Path] = []
    with suppress(OSError):  # another process may be removing some of them
        locks += disk.glob(f"hpcfl-*-????????/*/*/*{_suffix()}")
    for path in locks:
        with suppress(OSError):  # it is held, or gone
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                held = lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) is None
                if held and leads_to(path, fd) and os.fstat(fd).st_uid == os.geteuid():
                    _remove(path)
            finally:
                os.close(fd)


def _remove(lock: Path) -> None:
    """Remove a folder whose lock this process holds, then the lock, then what is empty around."""
    folder = lock.with_name(lock.name.removesuffix(_suffix()))
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty: another rank's folder is there
        if not folder.exists():
            lock.unlink(missing_ok=True)  # gone already where there are no locks
        for empty in list(lock.parents)[:3]:  # the rank's, the session's, the run's
            empty.rmdir()
