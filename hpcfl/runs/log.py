"""Write and read log.jsonl: a line for each round, appended by rank 0, with a checksum."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple
from zlib import crc32

from hpcfl.errors import StoreError, file_error
from hpcfl.io import checksum, regular
from hpcfl.io.atomic import STANDS, write_errors, write_file
from hpcfl.io.files import parse_json, read_bytes, readable
from hpcfl.io.live_files import check_in_place
from hpcfl.runs.log_keys import OF_RANKS, QUANTILES, SLOWEST


class LogPosition(NamedTuple):
    """The length of the log at some round, and its checksum up to there."""

    length: int
    """Bytes."""
    crc: int

    def after(self, more: bytes) -> "LogPosition":
        """The position after appending ``more``."""
        return LogPosition(self.length + len(more), crc32(more, self.crc))


NOTHING = LogPosition(0, 0)
Line = Mapping[str, float | int | Sequence[float] | None]
_LISTS = (OF_RANKS, QUANTILES)  # the keys whose value is a list
MANY_RANKS = 64  # above so many a line has not the numbers of all: it would be kilobytes long


def of_ranks(busy: Sequence[float]) -> dict[str, float | Sequence[float]]:
    """The part of a line that says how long each rank worked; of many ranks, the quartiles.

    Args:
        busy: seconds, by rank; empty where there is nothing to say.
    """
    if len(busy) <= MANY_RANKS:
        return {OF_RANKS: busy} if busy else {}
    ascending, last = sorted(busy), len(busy) - 1
    quartiles = [ascending[round(part * last / 4)] for part in range(5)]
    return {QUANTILES: quartiles, SLOWEST: busy.index(ascending[-1])}


class AppendedFile:
    """A file of a run, open for appending; without a path (not rank 0) it writes nothing.

    Args:
        path: of the file.
        position: its end; a resume has cut it there.
    """

    def __init__(self, path: Path | None, position: LogPosition = NOTHING) -> None:
        self._path = path or Path()
        self._file: FileIO | None = None
        self.position = position
        """The end of the file."""
        if path:
            with write_errors(path):
                # Unbuffered: after a failed write (a full disk), a buffer would be written again at
                # the close, and fail again.
                self._file = regular.open_append(path)

    def append(self, content: bytes) -> None:
        """Append to the file.

        Raises:
            DiskError: the disk is full or fails.
        """
        if self._file:
            with write_errors(self._path):
                left = memoryview(content)
                while left:
                    left = left[self._file.write(left) :]
            self.position = self.position.after(content)

    def sync(self) -> None:
        """Fsync the file.

        Raises:
            DiskError: the disk fails.
        """
        if self._file:
            with write_errors(self._path):
                os.fsync(self._file.fileno())

    def require_in_place(self) -> None:
        """Refuse to commit a checkpoint where it is no longer the file that this run writes.

        Raises:
            LostFileError: it was deleted, replaced or changed.
        """
        if self._file:
            check_in_place(self._path, self._file.fileno(), self.position.length)

    def close(self) -> None:
        """Close the file.

        Raises:
            DiskError: the disk fails; NFS may report a failed write only now.
        """
        if self._file:
            with write_errors(self._path):
                self._file.close()


class RunLog(AppendedFile):
    """The log of a run, open for appending."""

    def write(self, record: Line) -> None:
        """Append the line of a round; numbers that are not finite, which JSON lacks, are null.

        Raises:
            DiskError: the disk is full or fails.
        """
        self.append(log_line(record))


def log_line(record: Line) -> bytes:
    """The line of a round, with its checksum and line break."""
    known = {
        key: value if not isinstance(value, int | float) or math.isfinite(value) else None
        for key, value in record.items()
    }
    return checksum.add_to_json(json.dumps(known, allow_nan=False)) + b"\n"


def truncate_log(path: Path, kept: bytes) -> None:
    """Cut the log behind ``kept``, its rounds up to a checkpoint: later ones are run again.

    Raises:
        DiskError: the disk is full or fails.
        StoreError: it cannot be written for another reason.
    """
    # Not cut in place: other hard links may lead to the file, of a copy of the run or a backup.
    if path.exists() and path.stat().st_size > len(kept):
        write_file(path, kept, advice=STANDS)


def require_log_prefix(path: Path, extent: LogPosition) -> bytes:
    """Read the log up to ``extent``, the position of a checkpoint.

    Raises:
        StoreError: rounds are missing or damaged, or the disk fails.
    """
    put_back = "put the log back from a copy; without it `hpcfl export` still writes the model"
    try:
        found = read_bytes(path, put_back)
    except FileNotFoundError as e:  # it is written from the first round on
        if extent.length:
            raise StoreError(
                f"{path}: there is no such file, expected the log of the checkpoint, "
                f"{extent.length} bytes; {put_back}"
            ) from e
        found = b""
    if len(found) < extent.length:
        raise StoreError(
            f"{path}: {len(found)} bytes, expected at least the {extent.length} of the checkpoint; "
            f"{put_back}"
        )
    log = found[: extent.length]
    if NOTHING.after(log) != extent:
        raise StoreError(
            f"{path}: checksum {crc32(log)} of its first {extent.length} bytes, expected "
            f"{extent.crc}: a line was changed; {put_back}"
        )
    return log


_RESTORE = (
    "if this round is after the last checkpoint, a resume repairs the log; else put the log back "
    "from a copy, or resume from a checkpoint before the round by --round"
)


class LogReader:
    """Reads a log to which a run may be appending; parses every line once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rounds: list[Mapping[str, Any]] = []
        self._end, self._last = 0, b""  # how far it was read, and the last line

    def read(self) -> tuple[Mapping[str, Any], ...]:
        """The objects of all rounds, in order; a last line without its line break is ignored.

        Raises:
            StoreError: a line is damaged.
        """
        try:
            file = regular.open_binary(self._path)
        except FileNotFoundError:  # before the first round
            return ()
        except OSError as e:
            message = f"{self._path}: cannot be read: {e.strerror}; {_RESTORE}"
            raise file_error(e, message, StoreError) from e
        with file, readable(self._path):
            file.seek(self._end - len(self._last))
            if file.read(len(self._last)) != self._last:  # a resume cut the log meanwhile
                self._rounds, self._end, self._last = [], 0, b""
                file.seek(0)
            more = file.read()
        return self.parse(more)

    def parse(self, more: bytes) -> tuple[Mapping[str, Any], ...]:
        """The objects of all rounds up to the end of ``more``, which follows what was read so far.

        Raises:
            StoreError: a line is damaged.
        """
        *lines, tail = more.split(b"\n")
        for line in lines:
            self._rounds.append(self._parsed(line))
            self._end, self._last = self._end + len(line) + 1, line + b"\n"
        if not checksum.is_json_prefix(tail):
            where = f"{self._path}:{len(self._rounds) + 1}"
            raise StoreError(f"{where}: its end is damaged, expected a line break; {_RESTORE}")
        return tuple(self._rounds)

    def _parsed(self, line: bytes) -> Mapping[str, Any]:
        where = f"{self._path}:{len(self._rounds) + 1}"
        try:
            entry = parse_json(checksum.remove_from_json(line))
        except ValueError as error:
            raise StoreError(f"{where}: is damaged: {error}; {_RESTORE}") from error
        if not isinstance(entry, dict) or type(entry.get("round")) is not int:
            raise StoreError(f'{where}: found no object with a whole number "round"')
        for key, value in entry.items():
            values = value if key in _LISTS and isinstance(value, list) else [value]
            if not {type(value) for value in values} <= {int, float, NoneType}:
                raise StoreError(f"{where}: {key} is {value!r:.60}, expected a number")
        return entry
