"""log.jsonl: one JSON object a round, appended by rank 0."""

import json
import math
import os
from collections.abc import Mapping
from io import BufferedWriter
from pathlib import Path

from hpcfl.errors import StoreError
from hpcfl.store.durable import storing


class RunLog:
    """The log of a run; on ranks other than 0, a log that keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file: BufferedWriter | None = path.open("ab") if path else None

    def write(self, record: Mapping[str, float | int]) -> None:
        """Append one round; a number that is not finite, which JSON lacks, as null.

        Raises:
            StoreError: the disk is full or fails.
        """
        if self._file:
            with storing(Path(self._file.name)):
                self._file.write(_line(record))
                self._file.flush()

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self._file.tell() if self._file else 0

    def sync(self) -> None:
        """Make what was written durable.

        Raises:
            StoreError: the disk fails.
        """
        if self._file:
            with storing(Path(self._file.name)):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


def _line(record: Mapping[str, float | int]) -> bytes:
    known = {key: value if math.isfinite(value) else None for key, value in record.items()}
    return json.dumps(known, allow_nan=False).encode() + b"\n"


def cut(path: Path, length: int) -> None:
    """Take away what lies beyond ``length`` bytes: the rounds after a checkpoint.

    Raises:
        StoreError: it is shorter than that, so rounds are missing.
    """
    if require(path, length) > length:
        os.truncate(path, length)


def require(path: Path, length: int) -> int:
    """The length of the log in bytes.

    Raises:
        StoreError: it is shorter than ``length``, so rounds are missing.
    """
    found = path.stat().st_size if path.exists() else 0
    if found < length:
        raise StoreError(
            f"{path}: {found} bytes, expected at least the {length} of the checkpoint; put the "
            "log back"
        )
    return found
