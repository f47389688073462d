"""Keep two processes from making the same files at once."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from hpcfl.errors import DataError, file_error

NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
"""What a file system without locks answers."""
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


def preparing(root: Path, kind: str) -> AbstractContextManager[None]:
    """Be the only one who prepares data of this kind in ``root``.

    Raises:
        DataError: another process does.
    """
    busy = f"{root}: another prepare of {kind} is at work there; wait for it or stop it"
    return locked(root / f".{kind}", busy)


@contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[None]:
    """Be the only one who makes ``path``, by a lock on PATH.lock, which is gone afterwards.

    Whoever may not write there can spoil nothing, and needs no lock.

    Args:
        path: what is to be made; its folder is made if need be, and goes again if it stays empty.
        busy: what is said if another process makes it; it is waited for when absent.

    Raises:
        DataError: another process makes it and is not waited for; or there can be no such file.
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
        with suppress(OSError):  # they are not empty: something was made
            for folder in absent:
                folder.rmdir()


def _take(lock: Path, wait: bool) -> int | None:
    """The descriptor of the file, locked; None where this process may not write."""
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno in _NOT_OURS:
                return None
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            # Some parallel file systems have no flock.
            if error.errno not in NO_LOCKS:
                os.close(fd)
                raise
        if _names(lock, fd):
            return fd
        os.close(fd)  # whoever held it has removed it


def _names(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
