"""Locks that keep two processes from making the same files at once.

Downloads, unpacking and `hpcfl data prepare` use them.  Where the file system has no flock, work
goes on without a lock.  A run directory has a lock of its own (``RunDir.lock``), as has a segment
(``hpcfl.store.segment``).
"""

import errno
import fcntl
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path

from hpcfl.errors import DataError, file_error
from hpcfl.io.regular import open_fd

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
    file = path.with_name(path.name + ".lock")
    absent = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
    try:
        fd = _take(file, busy is None)
    except BlockingIOError as error:
        raise DataError(busy or str(error)) from error
    except OSError as error:
        raise file_error(error, f"{file}: cannot be made: {error.strerror}", DataError) from error
    try:
        yield
    finally:
        if fd is not None:
            file.unlink(missing_ok=True)
            os.close(fd)
        with suppress(OSError):  # not empty: the block made something
            for folder in absent:
                folder.rmdir()


def lock(fd: int, kind: int) -> OSError | None:
    """Lock an open file; the one place that tells a lock that is held from one that cannot be had.

    File systems without flock do not agree on an errno: ENOSYS, EOPNOTSUPP, ENOLCK, EINVAL, and 524
    of the kernel's own (Cray DVS).  One that fails will fail at the next write, too.

    Args:
        fd: its descriptor.
        kind: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``; with ``fcntl.LOCK_NB`` it does not wait.

    Returns:
        None if it is locked, or why the file system has no locks.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    try:
        fcntl.flock(fd, kind)
    except BlockingIOError:
        raise
    except OSError as error:
        return error
    return None


def lock_now(fd: int, kind: int) -> OSError | None:
    """As ``lock``, but do not wait for a process that holds the lock for longer than a moment.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    for _ in range(RETRIES):
        with suppress(BlockingIOError):
            return lock(fd, kind | fcntl.LOCK_NB)
        time.sleep(0.1)
    return lock(fd, kind | fcntl.LOCK_NB)


@cache
def warn_of_no_locks(reason: str) -> None:
    """Say, once in a process, that the file system keeps no other process out.

    Args:
        reason: of the error that ``lock`` returned.
    """
    warnings.warn(
        f"no locks on this file system ({reason}): nothing keeps another process from writing the "
        "same files; of a run, heartbeats keep a second one out, but not at the start",
        stacklevel=2,
    )


def _take(path: Path, wait: bool) -> int | None:
    """Lock the file; return its descriptor, or None if this process may not write there."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = open_fd(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in _NOT_WRITABLE:
                return None
            raise
        try:
            unlocked = lock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            raise
        if unlocked:
            warn_of_no_locks(str(unlocked.strerror))
        if leads_to(path, fd):
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
