"""Reading HDF5 files in TensorFlow Federated's layout: examples/CLIENT/FEATURE."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from hpcfl.errors import DataError

_DEFLATE = 1032  # the most that HDF5's usual compression can save


@contextmanager
def open_examples(path: Path) -> Iterator[Any]:
    """The group ``examples``, whose members are the clients.

    Raises:
        DataError: there is none, or damage is found in the file while the block reads.
    """
    try:
        with h5py.File(path, "r") as file:
            yield member(path, file, "examples", h5py.Group)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a readable HDF5 file: {error}") from error


def feature(path: Path, group: Any, client: str, name: str) -> Any:
    """A client's dataset of that name, which holds what it claims and holds it in this very file.

    Raises:
        DataError: there is none, or its data lie elsewhere or nowhere.
    """
    dataset = member(path, member(path, group, client, h5py.Group), name, h5py.Dataset)
    if dataset.external or dataset.is_virtual:
        raise DataError(f"{path}: {dataset.name} keeps its data in another file: not read")
    stored = min(dataset.id.get_storage_size(), path.stat().st_size)
    if dataset.nbytes > _DEFLATE * stored:  # HDF5 would make up the rest, however much it is
        raise DataError(
            f"{path}: {dataset.name} claims {dataset.nbytes} bytes, the file holds {stored}"
        )
    return dataset


def member(path: Path, group: Any, name: str, kind: type[Any]) -> Any:
    """A member of a group that lies in this very file.

    Raises:
        DataError: there is none, or it is not of this kind.
    """
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{path}: expected {name!r} in {group.name} of the file itself; not found")
    found = group[name]
    if not isinstance(found, kind):
        raise DataError(f"{path}: {found.name} is no {kind.__name__.lower()}")
    return found
