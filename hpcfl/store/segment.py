"""A segment: one HDF5 file of client states, whose rows are read and written in place.

Rows are read by ``preadv`` and written by ``pwrite`` at their offset in the file, without HDF5.
So a write cannot touch metadata, which a kill could leave damaged; an I/O error is an OSError,
where HDF5 can crash the interpreter; and other Python threads run meanwhile.  The file stays a
valid HDF5 file for any reader.
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

from hpcfl.errors import REPEAT, DiskError, HpcflError, StoreError, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import PART, write_errors
from hpcfl.io.live_files import check_in_place
from hpcfl.io.lock import lock_now
from hpcfl.store import segment_file
from hpcfl.store.schema import StateSchema

NAME = re.compile(rf"(?P<session_id>[0-9A-Za-z]+)-r\d{{4,}}-s\d{{4,}}\.h5({re.escape(PART)})?")


def file_name(session_id: str, rank: int, index: int) -> str:
    """The name of the ``index``-th segment file that ``rank`` makes in a session."""
    return f"{session_id}-r{rank:04d}-s{index:04d}.h5"


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
        self,
        path: Path,
        schema: StateSchema,
        layout: segment_file.SegmentLayout,
        fd: int,
        mode: Literal["r", "r+"],
    ) -> None:
        self.path, self.rows = path, layout.rows
        self.crcs = np.zeros(layout.rows, np.uint32)
        """The crc32 of each row, in memory alone: zeros after ``open``, set from the row table at a
        restore, and by ``BackgroundIO`` after each write."""
        self._schema, self._offsets, self._fd, self._mode = schema, layout.offsets, fd, mode
        self._size = os.fstat(fd).st_size

    @classmethod
    def create(cls, path: Path, schema: StateSchema, rows: int) -> "Segment":
        """Make a file of ``rows`` rows of undefined content, and open it for writing.

        Raises:
            DiskError: the disk is too small or fails.
            StoreError: the file exists.
        """
        segment_file.create(path, schema, rows)
        return cls.open(path, schema, "r+")

    @classmethod
    def open(cls, path: Path, schema: StateSchema, mode: Literal["r", "r+"]) -> "Segment":
        """Open a file that ``create`` made.

        Raises:
            StoreError: it is missing, damaged, not of this schema, or another process has it open
                for writing.
        """
        layout = segment_file.inspect(path, schema)
        try:
            fd = regular.open_fd(path, os.O_RDWR if mode == "r+" else os.O_RDONLY)
        except OSError as error:
            message = f"{path}: cannot open with mode {mode}: {error.strerror}"
            raise file_error(error, f"{message}; repair its permissions", StoreError) from error
        if mode == "r+" and os.fstat(fd).st_nlink > 1:
            mode = "r"
        if mode == "r+":
            _lock(path, fd)
        return cls(path, schema, layout, fd, mode)

    @property
    def writable(self) -> bool:
        """Whether rows may be written: not where the file has other hard links.

        It then belongs to a copy of the run, too (``cp -al``, ``rsync --link-dest``, snapshots),
        whose checkpoints need its rows.
        """
        return self._mode == "r+" and os.fstat(self._fd).st_nlink <= 1

    def read(self, row: int) -> tuple[Tensor, ...]:
        """Read a row into new tensors.

        Raises:
            StoreError: there is no such row, or the file cannot be read up to its end.
            DiskError: the disk fails.
        """
        tensors = tuple(torch.empty(f.shape, dtype=f.dtype) for f in self._schema.fields)
        self.fill(row, tensors)
        return tensors

    def fill(self, row: int, tensors: Iterable[Tensor]) -> None:
        """Read a row into ``tensors``, which must be contiguous and of the schema.

        Raises:
            StoreError: there is no such row, or the file cannot be read up to its end.
            DiskError: the disk fails.
        """
        self._check(row)
        for start, tensor in zip(self._offsets, tensors, strict=True):
            view = _view(tensor)
            self._read(row, view, start + row * len(view))

    def write(self, row: int, tensors: Iterable[Tensor]) -> None:
        """Overwrite a row; it is on the disk for certain only after ``flush``.

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
        """Fsync the file: all rows that were written survive a loss of power.

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
        """Check that the path still leads to this file, before a checkpoint is committed.

        Raises:
            LostFileError: it was deleted or replaced, or has another size.
        """
        check_in_place(self.path, self._fd, self._size)

    def close(self) -> None:
        """Release the file.

        Raises:
            DiskError: the disk fails; NFS may report only now that a quota is exceeded.
        """
        with write_errors(self.path):
            os.close(self._fd)

    def _check(self, row: int) -> None:
        if not 0 <= row < self.rows:
            raise StoreError(
                f"{self.path}: found {self.rows} rows, the row table names row {row}; it is of "
                "another run: resume from an older checkpoint"
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
        while done < len(view):  # Linux moves at most 2 GiB in one call
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
    """Lock a file for writing; refuse it if another process has locked it."""
    # The lock only keeps a second run out of the directory, by which states would be damaged: where
    # the file system has none, a single run is safe without it.
    try:
        lock_now(fd, fcntl.LOCK_EX)  # slurm/run.sh looks at the locks of earlier starts
    except BlockingIOError as error:
        os.close(fd)
        raise StoreError(
            f"{path}: another process has it open for writing; "
            "is another run using this directory? Stop it, then resume",
            exit_code=REPEAT,
        ) from error
