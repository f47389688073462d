"""log.jsonl: one JSON object a round, appended by rank 0."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from hpcfl.errors import StoreError
from hpcfl.store.durable import storing


class Extent(NamedTuple):
    """How much there was of the log, and its checksum."""

    length: int
    crc: int

    def after(self, more: bytes) -> "Extent":
        """With these bytes behind it."""
        return Extent(self.length + len(more), crc32(more, self.crc))


NOTHING = Extent(0, 0)


class RunLog:
    """The log of a run; on ranks other than 0, a log that keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file: FileIO | None = None
        self.extent = NOTHING
        """What stands in it."""
        if path:
            with storing(path):
                # Nothing waits in a buffer for another try, and another error, at the end.
                self._file = path.open("ab", buffering=0)
                self.extent = NOTHING.after(path.read_bytes())

    def write(self, record: Mapping[str, float | int]) -> None:
        """Append one round; a number that is not finite, which JSON lacks, as null.

        Raises:
            StoreError: the disk is full or fails.
        """
        if self._file:
            line = _line(record)
            with storing(Path(self._file.name)):
                left = memoryview(line)
                while left:
                    left = left[self._file.write(left) :]
            self.extent = self.extent.after(line)

    def sync(self) -> None:
        """Make what was written durable.

        Raises:
            StoreError: the disk fails.
        """
        if self._file:
            with storing(Path(self._file.name)):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file.

        Raises:
            StoreError: the disk fails, as NFS tells now.
        """
        if self._file:
            with storing(Path(self._file.name)):
                self._file.close()


def _line(record: Mapping[str, float | int]) -> bytes:
    known = {key: value if math.isfinite(value) else None for key, value in record.items()}
    return json.dumps(known, allow_nan=False).encode() + b"\n"


def cut(path: Path, extent: Extent) -> None:
    """Take away what lies beyond ``extent``: the rounds after a checkpoint.

    Raises:
        StoreError: rounds are missing or damaged, or the disk fails.
    """
    require(path, extent)
    with storing(path), suppress(FileNotFoundError):  # before the first round
        os.truncate(path, extent.length)


def require(path: Path, extent: Extent) -> bytes:
    """The log as it was at a checkpoint.

    Raises:
        StoreError: rounds are missing or damaged, or the disk fails.
    """
    try:
        found = path.read_bytes()
    except FileNotFoundError:  # before the first round
        found = b""
    except OSError as e:
        raise StoreError(f"{path}: cannot be read: {e.strerror}; put the log back") from e
    if len(found) < extent.length:
        raise StoreError(
            f"{path}: {len(found)} bytes, expected at least the {extent.length} of the checkpoint; "
            "put the log back"
        )
    log = found[: extent.length]
    if NOTHING.after(log) != extent:
        raise StoreError(
            f"{path}: checksum {crc32(log)} of its first {extent.length} bytes, expected "
            f"{extent.crc}: a line was changed; put the log back"
        )
    return log
