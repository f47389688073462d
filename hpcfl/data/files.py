"""Reading numpy files that anyone may have written."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from hpcfl.errors import DataError

_DAMAGED = (OSError, ValueError, EOFError, BadZipFile, ZlibError, NotImplementedError)


def read_arrays(
    path: Path, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz, in the machine's byte order; nothing is unpickled.

    Raises:
        DataError: the file is missing or damaged, or lacks a required array.
    """
    with _open(path) as archive:
        absent = [name for name in required if name not in archive.files]
        if absent:
            raise DataError(
                f"{path}: no array {absent[0]!r}; found {', '.join(archive.files) or 'none'}"
            )
        present = [*required, *(name for name in optional if name in archive.files)]
        return {name: _read(path, archive, name) for name in present}


def read_array(path: Path, key: str | None = None) -> NDArray[Any]:
    """The array of an .npy, or the one called ``key`` (or the only one) of an .npz.

    Raises:
        DataError: the file is missing or damaged, or holds no such array.
    """
    if path.suffix == ".npz":
        if key is None:
            with _open(path) as archive:
                if len(archive.files) != 1:
                    raise DataError(
                        f"{path}: say which array by key; found {', '.join(archive.files)}"
                    )
                key = archive.files[0]
        return read_arrays(path, [key])[key]
    try:
        array = np.load(path, allow_pickle=False)
    except _DAMAGED as error:
        raise DataError(f"{path}: not a readable .npy file: {_reason(error)}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: an .npz archive, expected the suffix .npz")
    return _native(array)


def _open(path: Path) -> NpzFile:
    try:
        archive = np.load(path, allow_pickle=False)
    except _DAMAGED as error:
        raise DataError(f"{path}: not a readable .npz file: {_reason(error)}") from error
    if not isinstance(archive, NpzFile):
        raise DataError(f"{path}: a single array, expected an .npz archive")
    return archive


def _read(path: Path, archive: NpzFile, name: str) -> NDArray[Any]:
    try:
        return _native(np.asarray(archive[name]))
    except _DAMAGED as error:
        raise DataError(f"{path}: array {name!r} cannot be read: {_reason(error)}") from error


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """In the machine's byte order, as torch needs it."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def _reason(error: Exception) -> str:
    """The error in one line."""
    return str(error).partition("\n")[0] or type(error).__name__
