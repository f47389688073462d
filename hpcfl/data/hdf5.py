"""Read HDF5 files from untrusted sources: no external files, no invented sizes."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfl.data.check_heaps import check_heaps
from hpcfl.errors import DataError
from hpcfl.io.files import read_error, refuse_large_file
from hpcfl.io.regular import check_regular

_DEFLATE = 1032  # the most that HDF5's usual compression can save


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, for reading; damage found inside the block becomes a DataError.

    Raises:
        DataError: the file is missing or damaged.
        DiskError: the disk fails.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file; `hpcfl data prepare` says where to get it")
    try:
        check_regular(path)
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError) as error:
        reason = " ".join(str(error).split())
        message = f"{path}: not a readable HDF5 file: {reason}"
        raise read_error(error, message, DataError) from error


@contextmanager
def open_examples(path: Path) -> Iterator[Any]:
    """The group ``examples`` of a file in TensorFlow Federated's layout; its members are clients.

    Raises:
        DataError: there is none, or damage is found in the file while the block reads.
    """
    with opened(path) as file:
        yield member(path, file, "examples", h5py.Group)


def feature(path: Path, group: Any, client: str, name: str) -> Any:
    """A client's dataset examples/CLIENT/NAME, for a reader of all its values.

    Raises:
        DataError: there is too little memory for it, or as ``member``.
    """
    found = member(path, member(path, group, client, h5py.Group), name, h5py.Dataset)
    refuse_large_file(path, found.nbytes)
    return found


def member(path: Path, group: Any, name: str, kind: type[Any]) -> Any:
    """A member of a group, whose data are in this file as a whole.

    Raises:
        DataError: there is none, it is of another kind, or its data are missing or in another file.
    """
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{path}: expected {name!r} in {group.name} of the file itself; not found")
    found = group[name]
    if not isinstance(found, kind):
        raise DataError(f"{path}: {found.name} is no {kind.__name__.lower()}")
    if kind is h5py.Dataset:
        if found.external or found.is_virtual:
            raise DataError(f"{path}: {found.name} keeps its data in another file: not read")
        stored = min(found.id.get_storage_size(), path.stat().st_size)
        packed = found.id.get_create_plist().get_nfilters() > 0
        # HDF5 would make up the rest, however much it is.
        if found.nbytes > (_DEFLATE if packed else 1) * stored:
            raise DataError(
                f"{path}: {found.name} claims {found.nbytes} bytes, the file holds {stored}"
            )
    return found


def strings(path: Path, group: Any, name: str) -> Any:
    """The dataset of that name, a list of strings, not read yet.

    Raises:
        DataError: it is none, its strings are damaged, or as ``member``.
    """
    found = member(path, group, name, h5py.Dataset)
    form = h5py.check_string_dtype(found.dtype)
    if found.ndim != 1 or form is None:
        raise DataError(
            f"{path}: {found.name} is {found.dtype} of shape {found.shape}, expected a list of "
            "strings"
        )
    refuse_large_file(path, found.nbytes)
    if form.length is None:
        check_heaps(path)
    return found


def attribute(file: Any, name: str) -> Any:
    """A number or a text of fixed length in the file's attributes; None where it is neither.

    Others are not read: HDF5 keeps them without a checksum.
    """
    if name not in file.attrs:
        return None
    found = file.attrs.get_id(name)
    return file.attrs[name] if found.shape == () and found.dtype.kind in "iufS" else None


def encoded(texts: Iterable[str]) -> NDArray[np.bytes_]:
    """Texts of one length, which HDF5 covers by its checksums."""
    return np.array([os.fsencode(text) for text in texts], dtype=np.bytes_)
