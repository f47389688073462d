"""Files that ``hpcfl data prepare`` makes: how they are written, and from which sources.

A file is written under another name and renamed when it is complete, so that a kill leaves either
the whole file or none of its name.  It records its origin, a digest of the names, sizes and times
of the files that it was made from: a preparation compares it while those files are there; a job
asks for the prepared file alone.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from shlex import join
from typing import Any

import numpy as np

from hpcfl.data.base import DataConfig
from hpcfl.data.hdf5 import attribute, opened
from hpcfl.errors import DataError, disk_errors, file_error
from hpcfl.io.atomic import PART, remove_part, sync_folder
from hpcfl.io.new_hdf5 import new_hdf5
from hpcfl.io.regular import open_binary

Stamp = tuple[int, int] | None
"""Size and time of the last change, in nanoseconds; None where no file is."""


@contextmanager
def new_prepared_file(path: Path, room: int, **attributes: int | np.bytes_) -> Iterator[Any]:
    """A new HDF5 file ``path``, which has another name until the block ends.

    Args:
        path: the file.
        room: bytes of all its arrays, at most.
        attributes: its format, its origin, and what a reader checks.

    Raises:
        DataError: the file cannot be made.
        DiskError: the disk is full or fails.
    """
    part = path.with_name(path.name + PART)
    try:
        with preparation_errors(path), new_hdf5(part, room) as file:
            file.attrs.update(attributes)
            yield file
        with preparation_errors(path):
            commit(part, path)
    except BaseException:  # it may take much room on the disk
        remove_part(part)
        raise


@contextmanager
def preparation_errors(path: Path) -> Iterator[None]:
    """Convert errors of the system inside the block into one about ``path``.

    Raises:
        DataError: the block raised OSError, and not because of the disk.
        DiskError: the disk is full or fails.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise file_error(error, f"{path}: cannot be made: {reason}", DataError) from error


def commit(part: Path, path: Path) -> None:
    """Rename a closed file to ``path``, after its contents have reached the disk.

    A loss of power then leaves the whole file, or none of this name.
    """
    with open_binary(part) as file:
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def stamp(path: Path) -> Stamp:
    """Size and time of a file, which identify its contents without reading them.

    Raises:
        DiskError: the disk fails, which says nothing about the file.
    """
    try:
        with disk_errors():
            found = path.stat()
    except OSError:  # its reader reports the error
        return None
    return found.st_size, found.st_mtime_ns


def stamps(root: Path, names: Iterable[str]) -> list[tuple[str, Stamp]]:
    """Files below ``root``, by name."""
    return [(name, stamp(root / name)) for name in names]


def source_fingerprint(about: object) -> str:
    """The digest of any JSON value."""
    return blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()


def origin_of(path: Path) -> str:
    """What a prepared file was made from, as the file records it; empty if it does not.

    Raises:
        DataError: it is damaged.
    """
    with opened(path) as file:
        return str(attribute(file, "origin") or b"", "utf-8")


def origin_and_size(path: Path) -> str:
    """What tells a prepared file from others without reading its examples.

    Raises:
        DataError: it is damaged.
    """
    return f"{origin_of(path)} {path.stat().st_size}"


def require_same_sources(path: Path, found: object, expected: str | bytes) -> None:
    """Compare the origin in a prepared file with that of the present source files.

    Raises:
        DataError: they differ.
    """
    if found != expected:
        raise DataError(f"{path}: made from other files: remove it and prepare again")


def prepare_command(data: str, root: str | Path, keys: Mapping[str, object] | None = None) -> str:
    """The command that prepares a data set, quoted for the shell.

    Args:
        data: as ``hpcfl data prepare`` takes it: "emnist split=balanced".
        root: the folder.
        keys: settings of the data set.
    """
    settings = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in (keys or {}).items()
    ]
    return join(["hpcfl", "data", "prepare", *data.split(), "--root", str(root), *settings])


def changed_keys(section: DataConfig, names: Iterable[str]) -> dict[str, object]:
    """The keys among ``names`` that a section has with values other than the defaults."""
    defaults = {field.name: field.default for field in fields(section)}
    return {
        name: getattr(section, name)
        for name in names
        if name in defaults and getattr(section, name) != defaults[name]
    }
