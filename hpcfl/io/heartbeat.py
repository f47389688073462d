"""Heartbeats: a small file that each rank of a running session rewrites every few seconds.

The watchdogs of the other ranks and ``hpcfl status`` read them.  Every session of a run has
a folder of its own, ``ranks/SESSION``: a process of an earlier session that was stopped (SIGSTOP)
and continues cannot overwrite the heartbeats of the new one.
"""

import errno
import os
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, NonNegativeInt, StringConstraints

from hpcfl.errors import StoreError, file_error
from hpcfl.io import checksum, regular
from hpcfl.io.atomic import write_errors
from hpcfl.io.files import READABLE, readable

SIZE = 512  # bytes of every file, so that one write replaces the whole heartbeat
WATCHED_S = 7.0  # longer than a rank takes between two heartbeats
POLL_S = 0.2
_TRIES = 10  # to read a file that is being written, which happens every few seconds
REPORT = "report"  # the file in which one rank reports why the run ends
LOST_CODE = 1  # the exit code where a rank was lost
_SESSION = re.compile(r"[0-9a-f]{8}")  # the name of a session's folder
_FILE = re.compile(rf"\d{{4,}}\.json|{REPORT}")  # and of the files in it
_EXIT_CODE = re.compile(r"\nexit code (\d{1,3})\n\Z")  # the report's last line

# Printed on a terminal, from a file that anybody may have written: no control characters.
Plain = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,128}$")]


@dataclass
class RankProgress:
    """Where a rank is: set by the main thread, read by the watchdog's thread."""

    round: int = 0
    """Counted as the log does; 0: before the first."""
    phase: str = "starting"
    """Its activity, in words that fit after "rank 2 was"."""
    calls: int = 0
    """Collectives that the rank has begun in this start; a rank with fewer is behind."""
    waits: bool = False
    """Whether it is in a collective now."""


class Heartbeat(BaseModel):
    """The content of a rank's file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    rank: NonNegativeInt
    host: Plain
    pid: NonNegativeInt
    beat: NonNegativeInt
    """Counts the heartbeats of the rank from 0."""
    time: float
    """When it was written, in seconds since the epoch, by the host's clock."""
    round: NonNegativeInt
    phase: Plain
    calls: NonNegativeInt
    waits: bool

    @property
    def who(self) -> str:
        """The rank, its host and its process, in words."""
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"

    @property
    def where(self) -> str:
        """Its round and phase, in words."""
        return round_and_phase(self.round, self.phase)

    def age(self, now: float) -> float:
        """Seconds since it was written; 0 where the hosts' clocks differ by more."""
        return max(0.0, now - self.time)


def round_and_phase(round: int, phase: str) -> str:
    """A round and a phase in words."""
    return f"in round {round}, {phase}" if round else phase


def read(path: Path) -> Heartbeat | None:
    """Read a heartbeat; None where it is missing, damaged or cannot be read."""
    try:
        return _read(path)
    except (OSError, ValueError):
        return None


def _read(path: Path) -> Heartbeat:
    """Read a heartbeat.

    Raises:
        OSError: it is missing, or cannot be read.
        ValueError: it is damaged, or being written.
    """
    with regular.open_binary(path) as file:
        content = file.read(SIZE)
    if not content:
        raise FileNotFoundError(errno.ENOENT, "nothing is written yet", path)
    return Heartbeat.model_validate_json(checksum.remove_from_json(content.rstrip(b" \n")))


def read_all(folder: Path) -> list[Heartbeat]:
    """Read all heartbeats in a folder, sorted by rank.

    Raises:
        StoreError: one is damaged, or cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except (FileNotFoundError, NotADirectoryError):  # the session has ended meanwhile
        return []
    found = (_read_again(path) for path in paths)
    return [heartbeat for heartbeat in found if heartbeat is not None]


def _read_again(path: Path) -> Heartbeat | None:
    """Read a heartbeat, again if its rank is writing it; None where the rank has ended."""
    for tries_left in reversed(range(_TRIES)):
        try:
            return _read(path)
        except FileNotFoundError:
            return None
        except OSError as e:
            message = f"{path}: cannot be read: {e.strerror}; {READABLE}"
            raise file_error(e, message, StoreError) from e
        except ValueError as e:
            if not tries_left:
                raise StoreError(
                    f"{path}: found no heartbeat of a rank: {e}; its rank rewrites it every few "
                    "seconds: try again"
                ) from e
    return None


def read_newest(root: Path) -> list[Heartbeat]:
    """Read the heartbeats of the newest session of the run, sorted by rank.

    Raises:
        StoreError: a heartbeat is damaged, or cannot be read.
    """
    sessions = [read_all(folder) for folder in (root.iterdir() if root.is_dir() else ())]
    return max(sessions, key=lambda beats: max((b.time for b in beats), default=-1.0), default=[])


def are_written(root: Path) -> bool:
    """Whether a rank rewrites its heartbeat within a few seconds: the run is alive.

    No clock is compared, as those of two hosts may differ.  Immediate where there is no heartbeat.
    """

    def present() -> dict[Path, Heartbeat]:
        found = ((path, read(path)) for path in root.glob("*/*.json"))
        return {path: heartbeat for path, heartbeat in found if heartbeat is not None}

    before, deadline = present(), time.monotonic() + WATCHED_S
    while before and time.monotonic() < deadline:
        if any(before.get(path) != heartbeat for path, heartbeat in present().items()):
            return True
        time.sleep(POLL_S)
    return False


def read_report(root: Path) -> str:
    """Read the line in which a rank reported why the newest session ended; "" where none did.

    Raises:
        StoreError: it cannot be read.
        DiskError: the disk fails.
    """
    with readable(root):
        found = sorted(root.glob(f"*/{REPORT}"), key=lambda path: path.stat().st_mtime)
        report = regular.read(found[-1]).decode(errors="replace") if found else ""
        return _EXIT_CODE.sub("", report).strip()


def _delete(session: Path) -> None:
    """Delete the folder of an earlier session; files that no session made stay, in their folder."""
    if session.is_symlink():
        return
    with suppress(OSError):
        for path in session.iterdir():
            if _FILE.fullmatch(path.name):
                path.unlink()
        session.rmdir()


class Heartbeats:
    """The heartbeat files of one session, for one rank: it writes its own and reads the others'."""

    def __init__(self, root: Path, session_id: str, rank: int) -> None:
        self._root, self.folder, self._rank = root, root / session_id, rank
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._beats = 0

    def begin(self) -> None:
        """Make the folder and remove those of earlier sessions; rank 0 alone, before all ``open``.

        Raises:
            DiskError: the disk fails.
        """
        with write_errors(self.folder):
            self.folder.mkdir(parents=True)
            for other in self._root.iterdir():
                # Its processes have ended, or are stopped and fail at their next heartbeat.
                if other != self.folder and _SESSION.fullmatch(other.name):
                    _delete(other)

    def open(self, progress: RankProgress) -> None:
        """Make this rank's file.

        Raises:
            DiskError: the disk is full or fails.
        """
        path = self._path(self._rank)
        with write_errors(path), regular.open_append(path) as file:
            file.write(self._encode(progress))

    def beat(self, progress: RankProgress) -> None:
        """Write a heartbeat.

        The file is opened and closed each time: NFS shows a write to other hosts at the close.

        Raises:
            OSError: the disk fails.
        """
        fd = regular.open_fd(self._path(self._rank), os.O_WRONLY, follow=False)
        try:
            os.pwrite(fd, self._encode(progress), 0)
        finally:
            os.close(fd)

    def read(self, size: int) -> dict[int, Heartbeat]:
        """Read the heartbeats of ranks 0 to ``size - 1``, by rank; without those unreadable."""
        found = ((rank, read(self._path(rank))) for rank in range(size))
        return {rank: heartbeat for rank, heartbeat in found if heartbeat is not None}

    def claim_report(self, line: str, code: int | None) -> bool:
        """Write why the run ends; False where another rank did so before.

        Only the rank that gets True prints the line.  Creating a file is atomic, so of several
        ranks that notice a failure at once exactly one prints it.

        Args:
            line: the reason.
            code: the exit code with which the watchdogs of the other ranks end them; None where
                the library does, and the line is for ``hpcfl status`` alone.
        """
        end = "" if code is None else f"exit code {code}\n"
        try:
            with (self.folder / REPORT).open("x", encoding="utf-8") as file:
                file.write(f"{line}\n{end}")
        except FileExistsError:
            return False
        except OSError:  # better printed by two ranks than by none
            return True
        return True

    def report_has_code(self) -> bool:
        """Whether a rank has reported with which exit code the others end."""
        return self._code_in_report() is not None

    def reported_code(self) -> int:
        """The exit code in the report; that of a lost rank where it cannot be read."""
        for _ in range(_TRIES):  # another rank may be writing it
            if (code := self._code_in_report()) is not None:
                return code
            time.sleep(POLL_S)
        return LOST_CODE

    def _code_in_report(self) -> int | None:
        """The exit code in the report; None where there is none, or it cannot be read now."""
        with suppress(OSError):
            report = regular.read(self.folder / REPORT).decode(errors="replace")
            if found := _EXIT_CODE.search(report):
                return int(found[1])
        return None

    def close(self) -> None:
        """Remove this rank's file; the last rank to do so removes the folder, too."""
        with suppress(OSError):  # the next session removes what is left
            self._path(self._rank).unlink(missing_ok=True)
            self.folder.rmdir()

    def _path(self, rank: int) -> Path:
        return self.folder / f"{rank:04d}.json"

    def _encode(self, progress: RankProgress) -> bytes:
        heartbeat = Heartbeat(
            rank=self._rank,
            host=self._host,
            pid=self._pid,
            beat=self._beats,
            time=time.time(),
            round=progress.round,
            phase=progress.phase,
            calls=progress.calls,
            waits=progress.waits,
        )
        self._beats += 1
        return checksum.add_to_json(heartbeat.model_dump_json()).ljust(SIZE - 1) + b"\n"
