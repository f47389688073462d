"""Read numpy files and JSON from untrusted sources, and the files of a run.

No code in them is executed.  The size that a file declares is compared with the free memory before
the file is read, since a few kilobytes can unpack to any size.  There is no other limit: a large
array of zeros is as small a file, and may be what the user wants.
"""

import io
import json
import os
import re
import struct
from collections.abc import Container, Iterable, Iterator
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
from hpcfl.io.regular import open_binary, read

# The errors that numpy and zipfile raise for damaged files, found by flipping every byte of one.
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
    path: Path,
    required: Iterable[str],
    optional: Iterable[str] = (),
    *,
    parted: Container[str] = (),
    content: bytes | None = None,
) -> dict[str, NDArray[Any]]:
    """Read arrays of an .npz by name, in the machine's byte order; nothing is unpickled.

    Args:
        path: of the file.
        required: the arrays that it must have.
        optional: those that it may have.
        parted: those of them, say "x", in whose place it may have "x.A", "x.B" and so on.
        content: of the file, where it was read already.

    Raises:
        DataError: the file is missing or damaged, lacks a required array, holds one whose name is
            nearly that of a missing optional one, or is too large.
    """
    with _open(path, content) as archive:
        if not isinstance(archive, NpzFile) or archive.zip is None:
            raise DataError(f"{path}: found a single array, expected an .npz archive")

        def parts(names: Iterable[str]) -> Iterator[str]:
            for name in names:
                found = [n for n in archive.files if n.startswith(f"{name}.") and name in parted]
                if found and name in archive.files:
                    raise DataError(
                        f"{path}: found {name!r} and {found[0]!r}, expected the one or the other"
                    )
                yield from found or [name]

        required, optional = [*parts(required)], [*parts(optional)]
        absent = [name for name in required if name not in archive.files]
        if absent:
            raise DataError(
                f"{path}: found {', '.join(archive.files) or 'no array'}, expected an array "
                f"{absent[0]!r}; add it to the file"
            )
        present = [*required, *(name for name in optional if name in archive.files)]
        for name in optional:
            if name not in present:
                _refuse_misnamed(path, name, [n for n in archive.files if n not in present])
        sizes = {
            info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()
        }
        refuse_large_file(path, sum(sizes[name] for name in present))
        return {name: _native(archive[name]) for name in present}


def _refuse_misnamed(path: Path, name: str, others: Iterable[str]) -> None:
    """Refuse an array that is nearly called ``name``, such as "client_ids" for "client"."""

    def spellings(name: str) -> set[str]:
        words = [word.removesuffix("s") for word in re.split("[_-]", name.lower())]
        words = [word for word in words if word != "id"]
        return {"".join(words), "".join(sorted(words))}

    for other in others:
        if spellings(other) & spellings(name):
            raise DataError(
                f"{path}: holds an array {other!r}, which nothing reads; expected {name!r}: rename "
                "it, or leave it out"
            )


def read_array(
    path: Path, key: str | None = None, *, default: str | None = None, content: bytes | None = None
) -> NDArray[Any]:
    """Read the array of an .npy, or that called ``key`` (or the only one) of an .npz.

    Args:
        path: of the file.
        key: the array's name.
        default: its name where there are several and ``key`` is None.
        content: of the file, where it was read already.

    Raises:
        DataError: the file is missing or damaged, or holds no such array.
    """
    with _open(path, content) as found:
        if isinstance(found, np.ndarray):
            if key is not None:
                raise DataError(f"{path}: found a single array, expected an archive with {key!r}")
            return _native(found)
        names = found.files if key is None else [key]
        if key is None and default in names:
            names = [default]
        if len(names) != 1:
            raise DataError(f"{path}: name the array by key; found {', '.join(names) or 'none'}")
    return read_arrays(path, names, content=content)[names[0]]


def refuse_large_file(path: Path, needed: int) -> None:
    """Refuse to read ``needed`` bytes from ``path`` if this machine has less memory free.

    Raises:
        DataError: it has less.
    """
    free = too_little_memory(needed)
    if free is not None:
        raise DataError(
            f"{path}: declares {decimal(needed)} of content, {decimal(free)} of memory are free; "
            "it is damaged, or too large for this machine"
        )


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, or is nested too deep for the parser.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_bytes(path: Path, advice: str) -> bytes:
    """Read a whole file of a run.

    Raises:
        StoreError: it cannot be read; ``advice``, what the user can do, ends the message.
        DiskError: the disk fails.
        FileNotFoundError: there is none.
    """
    try:
        return read(path)
    except FileNotFoundError:
        raise
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror or e}; {advice}"
        raise file_error(e, message, StoreError) from e


def present(path: Path) -> bool:
    """Whether there is anything of this name, also a broken link or an unreadable file.

    ``Path.exists`` returns False for these, so a damaged file would look like one never written.

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
    """The folders in ``root`` that contain ``name``, sorted; none if ``root`` does not exist.

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
    return [folder for folder in found if may_contain(folder, name)]


def may_contain(folder: Path, name: str) -> bool:
    """Whether the folder contains ``name``, or cannot be searched for it."""
    try:
        return present(folder / name)
    except (DiskError, StoreError):  # the caller that reads the file reports the error
        return True


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Convert an OSError in the block, which reads files below ``root``, into an error of one line.

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
    """Make the error to raise for a file that cannot be read or parsed.

    Args:
        error: the system's or a parser's.
        message: which file, what failed and what to do.
        otherwise: the class to use unless the file system itself failed.
    """
    return (
        file_error(error, message, otherwise) if isinstance(error, OSError) else otherwise(message)
    )


@contextmanager
def _open(path: Path, content: bytes | None) -> Iterator[Any]:
    """Open a file by ``np.load``; an error of a damaged file in the block becomes a DataError.

    Args:
        path: of the file.
        content: of it, where it was read already.

    Raises:
        DataError: the file is missing or damaged.
        DiskError: the disk fails.
    """
    try:
        # Opened here: ``np.load`` itself leaves a file with a broken archive open.
        with open_binary(path) if content is None else io.BytesIO(content) as file:
            yield np.load(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except _DAMAGED as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        if "allow_pickle" in reason:  # numpy's text for every file that is not a numpy file
            reason = "it is of another kind (numpy.savez writes an .npz), or holds Python objects"
        reason = reason or type(error).__name__
        message = f"{path}: not a readable file of numpy arrays: {reason}"
        raise read_error(error, message, DataError) from error


def _native(array: Any) -> NDArray[Any]:
    """The array, contiguous and in the machine's byte order, as torch needs it."""
    if not isinstance(array, np.ndarray):  # numpy returns a member that is no array as bytes
        raise ValueError("a member of the archive is no array")  # noqa: TRY004
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
