"""A segment: one file of R client states, whose rows are read and written in place.

Rows go by pread and pwrite to the raw storage of the contiguous datasets, beside HDF5, not
through it: a row's place is exact (offset + row * stride), a write can touch no metadata, an I/O
error is a plain OSError (inside HDF5 it can crash the interpreter), and both calls release the
interpreter lock.  The file stays a valid HDF5 file for any reader.
"""

import fcntl
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import DiskError, HpcflError, StoreError, file_error
from hpcfl.io.atomic import PART
from hpcfl.io.live_files import check_in_place
from hpcfl.io.lock import NO_LOCKS
from hpcfl.store import segment_file
from hpcfl.store.schema import StateSchema

NAME = re.compile(rf"(?P<session>[0-9A-Za-z]+)-r\d{{4,}}-s\d{{4,}}\.h5({re.escape(PART)})?")


def name(session: str, rank: int, index: int) -> str:
    """The file name of the ``index``-th segment that ``rank`` makes in ``session``."""
    return f"{session}-r{rank:04d}-s{index:04d}.h5"


def checksum(tensors: Iterable[Tensor]) -> int:
    """The crc32 of a state's bytes, field after field."""
    crc = 0
    for tensor in tensors:
        crc = zlib.crc32(_view(tensor), crc)
    return crc


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether two states of one schema are equal, byte for byte."""
    return all(_view(left) == _view(right) for left, right in zip(a, b, strict=True))


class Segment:
    """An open segment file; use ``create`` or ``open``."""

    def __init__(
        self, path: Path, schema: StateSchema, place: segment_file.Layout, fd: int
    ) -> None:
        self.path, self.rows = path, place.rows
        self.crcs = np.zeros(place.rows, np.uint32)
        """The checksums of the rows, as far as they are known; who writes one sets it."""
        self._schema, self._offsets, self._fd = schema, place.offsets, fd
        self._size = os.fstat(fd).st_size

    @classmethod
    def create(cls, path: Path, schema: StateSchema, rows: int) -> "Segment":
        """Make a new, complete file of ``rows`` rows of undefined content; open it for writing.

        Raises:
            DiskError: the disk is too small.
            StoreError: the file exists.
        """
        segment_file.create(path, schema, rows)
        return cls.open(path, schema, "r+")

    @classmethod
    def open(cls, path: Path, schema: StateSchema, mode: Literal["r", "r+"]) -> "Segment":
        """Open a file that ``create`` made.

        Raises:
            StoreError: it is missing, damaged, not of this schema, or another process writes it.
        """
        place = segment_file.inspect(path, schema)
        try:
            fd = os.open(path, os.O_RDWR if mode == "r+" else os.O_RDONLY)
        except OSError as error:
            message = f"{path}: cannot open with mode {mode}: {error.strerror}"
            raise file_error(error, f"{message}; repair its permissions", StoreError) from error
        if mode == "r+":
            _lock(path, fd)
        return cls(path, schema, place, fd)

    def read(self, row: int) -> tuple[Tensor, ...]:
        """The tensors of a row, in new memory.

        Raises:
            StoreError: there is no such row.
            DiskError: the disk fails.
        """
        tensors = tuple(torch.empty(f.shape, dtype=f.dtype) for f in self._schema.fields)
        self.fill(row, tensors)
        return tensors

    def fill(self, row: int, tensors: Iterable[Tensor]) -> None:
        """Read a row into these tensors, which are contiguous and of the schema.

        Raises:
            StoreError: there is no such row.
            DiskError: the disk fails.
        """
        self._check(row)
        for start, tensor in zip(self._offsets, tensors, strict=True):
            view = _view(tensor)
            self._read(row, view, start + row * len(view))

    def write(self, row: int, tensors: Iterable[Tensor]) -> None:
        """Replace a row in place; durable only after ``flush``.

        Raises:
            StoreError: there is no such row.
            DiskError: the disk fails.
            ValueError: the tensors are not of the schema.
        """
        self._check(row)
        for field, start, tensor in zip(self._schema.fields, self._offsets, tensors, strict=True):
            field.check(tensor)
            view = _view(tensor)
            self._write(row, view, start + row * len(view))

    def flush(self) -> None:
        """Bring all written rows to the disk.

        Raises:
            DiskError: the disk fails.
        """
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise DiskError(
                f"{self.path}: cannot fsync: {error.strerror}; the last checkpoint stands: "
                "repair the disk, then resume"
            ) from error

    def require_in_place(self) -> None:
        """Compare the file with what its name leads to; its size never changes.

        Raises:
            LostFileError: it was deleted, replaced or cut.
        """
        check_in_place(self.path, self._fd, self._size)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def _check(self, row: int) -> None:
        if not 0 <= row < self.rows:
            raise StoreError(
                f"{self.path}: row {row} was asked for, found {self.rows} rows; the row table "
                "is of another run: resume from an older checkpoint"
            )

    def _read(self, row: int, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise self._failed("read", row, error) from error
            if count == 0:
                raise StoreError(self._message("read", row, "the file ends before it"))
            done += count

    def _write(self, row: int, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):  # one call moves 2 GiB at most
            try:
                done += os.pwrite(self._fd, view[done:], offset + done)
            except OSError as error:
                raise self._failed("write", row, error) from error

    def _failed(self, verb: str, row: int, error: OSError) -> HpcflError:
        return file_error(error, self._message(verb, row, str(error.strerror)), StoreError)

    def _message(self, verb: str, row: int, reason: str) -> str:
        return (
            f"{self.path}: cannot {verb} row {row}: {reason}; the last checkpoint stands: "
            "repair the disk, then resume"
        )


def _view(tensor: Tensor) -> memoryview:
    """The tensor's bytes, row-major (a copy if it is not contiguous)."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _lock(path: Path, fd: int) -> None:
    """Refuse a file that another process has open for writing, where the disk knows locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some parallel file systems have no flock; the lock guards against two runs in one
        # directory and nothing else rests on it.
        if error.errno in NO_LOCKS:
            return
        os.close(fd)
        raise StoreError(
            f"{path}: another process has it open for writing; "
            "is another run using this directory? Stop it, then resume"
        ) from error
