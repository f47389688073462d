"""Locks that keep two processes from making the same files at once.

Downloads, unpacking and `hpcfl data prepare` use them.  Where the file system has no flock, work
goes on without a lock.  A run directory has a lock of its own (``RunDir.lock``), as has a segment
(``hpcfl.store.segment``).
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from hpcfl.errors import DataError, file_error
from hpcfl.io.regular import open_fd

NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
"""The errors of a file system without locks."""
RETRIES = 3  # another process may hold the lock briefly, only to test whether it is held
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def preparing(root: Path, kind: str) -> AbstractContextManager[None]:
    """Hold the lock for preparing data of this kind in ``root``.

    Raises:
        DataError: another process holds it.
    """
    busy = f"{root}: another prepare of {kind} is at work there; wait for it or stop it"
    return locked(root / f".{kind}", busy)


@contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[None]:
    """Hold a lock on PATH.lock while ``path`` is made; the lock file is deleted afterwards.

    A process that may not write there can damage nothing, and runs the block without the lock.

    Args:
        path: the file to make.  A missing folder is made, and removed again if it stays empty.
        busy: the message if another process holds the lock; None: wait for that process.

    Raises:
        DataError: another process holds the lock, or the lock file cannot be made.
    """
    lock = path.with_name(path.name + ".lock")
    absent = [folder for folder in (lock.parent, *lock.parent.parents) if not folder.exists()]
    try:
        fd = _take(lock, busy is None)
    except BlockingIOError as error:
        raise DataError(busy or str(error)) from error
    except OSError as error:
        raise file_error(error, f"{lock}: cannot be made: {error.strerror}", DataError) from error
    try:
        yield
    finally:
        if fd is not None:
            lock.unlink(missing_ok=True)
            os.close(fd)
        with suppress(OSError):  # not empty: the block made something
            for folder in absent:
                folder.rmdir()


def lock_now(fd: int, kind: int) -> None:
    """Lock an open file, or find that another process has locked it for longer than a moment.

    Args:
        fd: its descriptor.
        kind: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file system has no locks, or fails.
    """
    for retries_left in range(RETRIES, -1, -1):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not retries_left:
                raise
            time.sleep(0.1)
        else:
            return


def _take(lock: Path, wait: bool) -> int | None:
    """Lock the file; return its descriptor, or None if this process may not write there."""
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            fd = open_fd(lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in _NOT_WRITABLE:
                return None
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            # Some parallel file systems have no flock.
            if error.errno not in NO_LOCKS:
                os.close(fd)
                raise
        if leads_to(lock, fd):
            return fd
        # The process that held it has deleted it meanwhile: a lock on a file without a name keeps
        # nobody out, so try again.
        os.close(fd)


def leads_to(path: Path, fd: int) -> bool:
    """Whether ``path`` is the name of the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
