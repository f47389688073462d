"""Read numpy files and JSON from untrusted sources, and the files of a run.

Nothing in them is run.  What a file declares is compared with the memory that is free before it is
read: a few kilobytes can unpack to any size, and zeros that are meant do so too, so there is no
other limit.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from rich.filesize import decimal

from hpcfl.errors import DataError, DiskError, HpcflError, StoreError, file_error
from hpcfl.io.memory import too_little_memory

# What numpy and zipfile raise when they parse a damaged file, found by flipping every byte of one.
_DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    RuntimeError,
    SyntaxError,
    ArithmeticError,
    MemoryError,
    BadZipFile,
    ZlibError,
    TokenError,
    struct.error,
)


def read_arrays(
    path: Path, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz, in the machine's byte order; nothing is unpickled.

    Raises:
        DataError: the file is missing or damaged, lacks a required array, or is too large.
    """
    with _open(path) as archive:
        if not isinstance(archive, NpzFile) or archive.zip is None:
            raise DataError(f"{path}: a single array, expected an .npz archive")
        absent = [name for name in required if name not in archive.files]
        if absent:
            raise DataError(
                f"{path}: no array {absent[0]!r}; found {', '.join(archive.files) or 'none'}"
            )
        present = [*required, *(name for name in optional if name in archive.files)]
        sizes = {
            info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()
        }
        refuse_large_file(path, sum(sizes[name] for name in present))
        return {name: _native(archive[name]) for name in present}


def read_array(path: Path, key: str | None = None) -> NDArray[Any]:
    """The array of an .npy, or the one called ``key`` (or the only one) of an .npz.

    Raises:
        DataError: the file is missing or damaged, or holds no such array.
    """
    with _open(path) as content:
        if isinstance(content, np.ndarray):
            if key is not None:
                raise DataError(f"{path}: a single array, which has no key {key!r}")
            return _native(content)
        names = content.files if key is None else [key]
        if len(names) != 1:
            raise DataError(f"{path}: say which array by key; found {', '.join(names) or 'none'}")
    return read_arrays(path, names)[names[0]]


def refuse_large_file(path: Path, needed: int) -> None:
    """Refuse to read so many bytes of ``path`` where they do not fit into this machine's memory.

    Raises:
        DataError: there is less memory free.
    """
    free = too_little_memory(needed)
    if free is not None:
        raise DataError(
            f"{path}: takes {decimal(needed)} of memory as it says, {decimal(free)} are free; "
            "it is damaged, or too large for this machine"
        )


def parse_json(text: str | bytes) -> Any:
    """What JSON says.

    Raises:
        ValueError: it is none, or is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_bytes(path: Path, advice: str) -> bytes:
    """A whole file of a run.

    Raises:
        StoreError: it cannot be read; ``advice``, what a person can do, ends the message.
        DiskError: the disk fails.
        FileNotFoundError: there is none.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror or e}; {advice}"
        raise file_error(e, message, StoreError) from e


def present(path: Path) -> bool:
    """Whether anything has this name: also a link that leads nowhere, or what cannot be read.

    ``Path.exists`` says no of these, so that damage would look like a file that never was.

    Raises:
        StoreError: the folder cannot be searched.
        DiskError: the disk fails.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror or e}; {READABLE}"
        raise file_error(e, message, StoreError) from e
    return True


def folders_with(root: Path, name: str) -> list[Path]:
    """The folders in ``root`` that have something called ``name``, sorted; none without a root.

    Raises:
        StoreError: ``root`` cannot be listed.
        DiskError: the disk fails.
    """
    try:
        found = sorted(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as e:
        message = f"{root}: cannot be listed: {e.strerror or e}; {READABLE}"
        raise file_error(e, message, StoreError) from e
    return [folder for folder in found if has(folder, name)]


def has(folder: Path, name: str) -> bool:
    """Whether the folder has something called ``name``, or cannot be searched for it."""
    try:
        return present(folder / name)
    except (DiskError, StoreError):  # which is said by whoever reads it
        return True


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Turn a failure to read a file below ``root`` into one line.

    Raises:
        DiskError: the block raised OSError because the disk fails.
        StoreError: the block raised another OSError.
    """
    try:
        yield
    except OSError as e:
        where = root if e.filename is None else os.fsdecode(e.filename)
        message = f"{where}: cannot be read: {e.strerror or e}; {READABLE}"
        raise file_error(e, message, StoreError) from e


READABLE = "repair its permissions or the disk"


def read_error(error: Exception, message: str, otherwise: type[HpcflError]) -> HpcflError:
    """The error to raise for a file that cannot be read, or is found damaged while it is read.

    Args:
        error: what the reader raised: the system's, or a parser's.
        message: says which file, what failed and what to do.
        otherwise: the class where the file system itself is sound.
    """
    return (
        file_error(error, message, otherwise) if isinstance(error, OSError) else otherwise(message)
    )


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """What ``np.load`` makes of the file; damage found inside the block becomes a DataError.

    Raises:
        DataError: the file is missing or damaged.
        DiskError: the disk fails.
    """
    try:
        # Opened here, because numpy does not close a file in which it finds a broken archive.
        with path.open("rb") as file:
            yield np.load(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except _DAMAGED as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        if "allow_pickle" in reason:  # numpy's own text, of any file that is none of its own
            reason = "it is of another kind, or holds Python objects"
        reason = reason or type(error).__name__
        message = f"{path}: not a readable file of numpy arrays: {reason}"
        raise read_error(error, message, DataError) from error


def _native(array: Any) -> NDArray[Any]:
    """Contiguous and in the machine's byte order, as torch needs it."""
    if not isinstance(array, np.ndarray):  # an archive's member that numpy hands out as bytes
        raise ValueError("a member of the archive is no array")  # noqa: TRY004
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
