"""Create and check the HDF5 file of a segment: one contiguous dataset [R, *shape] per field.

HDF5 writes the file once, under a temporary name, and never again after the rename: rows are
written without HDF5 (``hpcfl.store.segment``).  The metadata, which format 1.8 checksums, never
change, so a kill cannot damage them.
"""

import errno
import os
import resource
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from rich.filesize import decimal

from hpcfl.errors import StoreError, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import PART, remove_part, sync_folder
from hpcfl.io.files import read_error
from hpcfl.io.new_hdf5 import new_hdf5
from hpcfl.store.schema import STORED, Field, StateSchema

# A text attribute of fixed length is part of the checksummed header.  HDF5 stores texts of variable
# length in a heap without a checksum, where one flipped byte makes it loop for ever.
FORMAT = np.bytes_(b"hpcfl client states 1")


class SegmentLayout(NamedTuple):
    """The number of rows, and where the dataset of each field begins in the file."""

    rows: int
    offsets: tuple[int, ...]  # bytes from the start of the file, one per field


def create(path: Path, schema: StateSchema, rows: int) -> None:
    """Create a segment file of ``rows`` rows: allocate it, fsync it, then rename it into place.

    Raises:
        DiskError: the disk is too small, or fails.
        StoreError: the file cannot be written for another reason, or exists.
    """
    _check_dtypes(path, schema)
    if path.exists():
        raise StoreError(f"{path}: exists already, expected a new name; is another run using it?")
    need = rows * schema.bytes
    part = path.with_name(path.name + PART)
    try:
        _write_datasets(part, schema, rows)
        part.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        remove_part(part)
        reason = error.strerror or " ".join(str(error).split())
        message = (
            f"{path}: cannot allocate client states ({reason}): needs {decimal(need)}, "
            f"{_shortage(error, path.parent)}, then resume"
        )
        raise file_error(error, message, StoreError) from error


def _shortage(error: OSError, folder: Path) -> str:
    """What is missing for a file in ``folder``, and what to do."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if error.errno == errno.EFBIG and limit != resource.RLIM_INFINITY:
        return f"but this process may write {decimal(limit)} into a file; raise `ulimit -f`"
    try:
        disk = os.statvfs(folder)
    except OSError:  # such as a folder that is gone, which is then the reason
        return "unknown how much free; make room"
    free = decimal(disk.f_bavail * disk.f_frsize)
    if error.errno == errno.ENOSPC and disk.f_files and not disk.f_favail:  # not all count inodes
        return f"{free} free, but no inode (`df -i`); delete files there"
    return f"{free} free; make room"


def inspect(path: Path, schema: StateSchema) -> SegmentLayout:
    """Check that a file is a complete segment of this schema, and find its rows.

    Raises:
        StoreError: it is missing, truncated, damaged, or holds something else.
    """
    _check_dtypes(path, schema)
    try:
        regular.check_regular(path)  # HDF5 would wait for a FIFO
        size = path.stat().st_size
        # Without HDF5's lock: the metadata never change, and ``Segment`` has a lock of its own.
        with h5py.File(path, "r", locking=False) as file:
            return _layout(path, file, schema, size)
    except FileNotFoundError as error:
        raise StoreError(
            f"{path}: the file is missing, expected a segment of client states; "
            "put it back or resume from an older checkpoint"
        ) from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        message = (
            f"{path}: damaged or not HDF5 ({' '.join(str(error).split())}), expected a segment "
            "of client states; resume from an older checkpoint"
        )
        raise read_error(error, message, StoreError) from error


def _check_dtypes(path: Path, schema: StateSchema) -> None:
    for field in schema.fields:
        if field.dtype not in STORED:
            known = ", ".join(map(str, STORED))
            raise StoreError(
                f"{path}: field {field.name!r} is {field.dtype}, a state holds {known}; cast it"
            )


def _write_datasets(path: Path, schema: StateSchema, rows: int) -> None:
    with new_hdf5(path, rows * schema.bytes) as file:
        file.attrs["format"] = FORMAT
        for field in schema.fields:
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_layout(h5py.h5d.CONTIGUOUS)
            plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            dataset = file.create_dataset(
                field.name, (rows, *field.shape), STORED[field.dtype], dcpl=plan
            )
            dataset.attrs["dtype"] = _name(field.dtype)


def _layout(path: Path, file: Any, schema: StateSchema, size: int) -> SegmentLayout:
    """The layout of an open file; ``size`` is the file's, in bytes."""
    _expect(path, "format", file.attrs.get("format"), FORMAT)
    _expect(path, "fields", sorted(file), sorted(field.name for field in schema.fields))
    rows = {len(_dataset(path, file, field, size)) for field in schema.fields}
    if len(rows) != 1:
        _expect(path, "rows of the fields", sorted(rows), "one number")
    offsets = tuple(file[field.name].id.get_offset() or 0 for field in schema.fields)
    return SegmentLayout(rows.pop(), offsets)


def _dataset(path: Path, file: Any, field: Field, size: int) -> Any:
    """The dataset of ``field``, if its bytes are stored plainly, completely and in this file.

    A file may come from elsewhere: a link or an external dataset would read another file, and
    the rows of a chunked or compressed one are not at their offsets.
    """
    where = f"field {field.name!r}: "
    link = file.get(field.name, getlink=True)
    _expect(path, where + "link", type(link).__name__, "HardLink")
    dataset = file[field.name]
    _expect(path, where + "kind", type(dataset).__name__, "Dataset")
    _expect(path, where + "shape", dataset.shape[1:], field.shape)
    _expect(path, where + "dtype", dataset.attrs.get("dtype"), _name(field.dtype))
    _expect(path, where + "stored type", dataset.dtype, STORED[field.dtype])
    plan = dataset.id.get_create_plist()
    _expect(path, where + "layout", plan.get_layout(), h5py.h5d.CONTIGUOUS)
    _expect(path, where + "external files", plan.get_external_count(), 0)
    offset = dataset.id.get_offset()
    if dataset.nbytes and (offset is None or offset + dataset.nbytes > size):
        end = None if offset is None else offset + dataset.nbytes
        _expect(path, where + "end of its storage", end, f"within the file's {size} bytes")
    return dataset


def _expect(path: Path, name: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise StoreError(
            f"{path}: {name}: found {_plain(found)}, expected {_plain(expected)}; the file "
            "is of another run or damaged: resume from an older checkpoint"
        )


def _plain(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _name(dtype: torch.dtype) -> np.bytes_:
    return np.bytes_(str(dtype).removeprefix("torch.").encode())
