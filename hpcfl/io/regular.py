"""Open files that must be regular: no FIFO, whose open would wait for ever, and no device.

Everything that hpcfl reads or writes by name goes through here; a FIFO, a socket, a device or a
folder in its place is an OSError whose text says so, which callers convert to one line as they do
with a missing file.
"""

import os
import stat
from errno import EINVAL, EISDIR, ELOOP, EPERM
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from zlib import crc32

from rich.filesize import decimal

from hpcfl.io.memory import too_little_memory

_PIECE = 1 << 22  # bytes that are read at once
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}
"""Words for each kind of file that is not regular."""


def open_fd(path: Path, flags: int = os.O_RDONLY, *, follow: bool = True) -> int:
    """Open a regular file; a descriptor, to be closed by the caller.

    Args:
        path: of the file.
        flags: of ``os.open``.
        follow: whether a symbolic link may lead to it.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    # O_NONBLOCK: the open of a FIFO returns at once.
    flags |= os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, 0o666)
    except OSError:
        # ENXIO for a socket or a FIFO without a reader, EISDIR for a folder, ELOOP for a link.
        try:
            found = path.stat() if follow else path.lstat()
        except OSError:
            found = None
        if found is not None:
            _require_regular(path, found)
        raise
    try:
        _require_regular(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    os.set_blocking(fd, True)  # a file that is leased, or on tape, is waited for
    return fd


def open_binary(
    path: Path, *, follow: bool = True, buffering: bool = True
) -> BufferedReader | FileIO:
    """Open a regular file for reading bytes.

    Raises:
        OSError: see ``open_fd``.
    """
    fd = open_fd(path, follow=follow)
    return os.fdopen(fd, "rb") if buffering else FileIO(fd, "rb")


def open_text(path: Path, encoding: str = "utf-8", newline: str | None = None) -> TextIOWrapper:
    """Open a regular file for reading text.

    Raises:
        OSError: see ``open_fd``; or it is larger than the free memory: all of a sparse file may be
            one line.
    """
    fd = open_fd(path)
    try:
        refuse_larger_than_memory(path, os.fstat(fd).st_size)
    except OSError:
        os.close(fd)
        raise
    return os.fdopen(fd, "r", encoding=encoding, newline=newline)


def open_write(path: Path) -> BufferedWriter:
    """Open a regular file for writing bytes, new or emptied.

    Raises:
        OSError: see ``open_fd``.
    """
    return os.fdopen(open_fd(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")


def create_private(path: Path) -> BufferedWriter:
    """Make a file that no other user can open, and open it for writing bytes.

    Raises:
        OSError: there is a file, or none can be made.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def open_private(path: Path) -> FileIO:
    """Open a file of ``create_private`` for reading, unbuffered.

    Raises:
        OSError: see ``open_fd``; or another user may have made it or can open it.
    """
    fd = open_fd(path, follow=False)
    found = os.fstat(fd)
    wrong = ""
    if found.st_uid != os.geteuid():
        wrong = f"it is of user {found.st_uid}, expected {os.geteuid()}"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        wrong = f"its mode is {stat.S_IMODE(found.st_mode):04o}, expected 0600"
    elif found.st_nlink != 1:
        wrong = f"it has {found.st_nlink} names, expected one"
    if wrong:
        os.close(fd)
        raise OSError(EPERM, wrong, str(path))
    return FileIO(fd, "rb")


def open_append(path: Path) -> FileIO:
    """Open a regular file for appending, unbuffered; no link is followed.

    A file that has other hard links is replaced by a copy first: it is part of a copy of the
    folder, too (``cp -al``, ``rsync --link-dest``).

    Raises:
        OSError: see ``open_fd``.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    fd = open_fd(path, flags, follow=False)
    if os.fstat(fd).st_nlink > 1:
        os.close(fd)
        copy = path.with_name(path.name + ".part")
        copy.unlink(missing_ok=True)
        with copy.open("xb") as file:
            file.write(read(path, follow=False))
            file.flush()
            os.fsync(file.fileno())
        copy.replace(path)
        fd = open_fd(path, flags, follow=False)
    return FileIO(fd, "ab")


def read(path: Path, *, follow: bool = True, own: bool = False) -> bytes:
    """Read a whole regular file.

    Args:
        path: of the file.
        follow: whether a symbolic link may lead to it.
        own: whether it must belong to this user or root.  To root, who in a container is this user,
            a file may belong to anybody.

    Raises:
        OSError: see ``open_fd``; or it is larger than the free memory, as a sparse file may be; or
            it is another user's (EPERM).
    """
    with open_binary(path, follow=follow) as file:
        found = os.fstat(file.fileno())
        if own and os.geteuid() != 0 and found.st_uid not in (0, os.geteuid()):
            raise OSError(EPERM, f"it is of user {found.st_uid}", str(path))
        refuse_larger_than_memory(path, found.st_size)
        return file.read()


def crc_of(path: Path) -> int:
    """The crc32 of a whole regular file, which is read piece by piece.

    Raises:
        OSError: see ``open_fd``.
    """
    crc = 0
    with open_binary(path, buffering=False) as file:
        while piece := file.read(_PIECE):
            crc = crc32(piece, crc)
    return crc


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a whole regular file as text.

    Raises:
        OSError: see ``read``.
        ValueError: it is not text of this encoding.
    """
    return read(path).decode(encoding)


def refuse_larger_than_memory(path: Path, size: int) -> None:
    """Refuse to read ``size`` bytes if fewer are free.

    Raises:
        OSError: fewer are.
    """
    free = too_little_memory(size)
    if free is not None:
        reason = f"it has {decimal(size)}, and {decimal(free)} of memory are free"
        raise OSError(EINVAL, reason, str(path))


def check_regular(path: Path) -> None:
    """Refuse a path that leads to something that is not a regular file.

    For libraries that open a file by its name.

    Raises:
        OSError: see ``open_fd``.
    """
    _require_regular(path, path.stat())


def _require_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    kind = KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
    number = {stat.S_IFDIR: EISDIR, stat.S_IFLNK: ELOOP}.get(stat.S_IFMT(found.st_mode), EINVAL)
    raise OSError(number, f"it is {kind}, expected a file", str(path))
