"""A small file for each rank of a live run, which says where the rank is and that it lives.

Every session of a run has a folder of its own, ``ranks/SESSION``: a process of an earlier session
that was stopped (SIGSTOP) and continues does not disturb the heartbeats of the new one.
"""

import errno
import os
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from hpcfl.errors import StoreError, file_error
from hpcfl.io import checksum
from hpcfl.io.atomic import write_errors
from hpcfl.io.files import READABLE, readable
from hpcfl.types import Natural

SIZE = 512  # bytes of every file, so that a heartbeat replaces the last one in a single write
_TRIES = 10  # to read a file that is being written, which happens every few seconds
REPORT = "told"  # the file in which one rank reports why the run ends

# It is shown to a person, and the file may be anybody's: one plain line.
Plain = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,128}$")]


@dataclass
class RankProgress:
    """Where a rank is: set by the main thread, which it costs nothing, read by another."""

    round: int = 0
    """As the log counts; 0: before the first."""
    phase: str = "starting"
    """What it does, in words that go on after "rank 2 was"."""
    calls: int = 0
    """Collectives that the rank has begun since the run was started; one with fewer is behind."""
    waits: bool = False
    """Whether it is inside of one."""


class Heartbeat(BaseModel):
    """What a rank's file says."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    rank: Natural
    host: Plain
    pid: Natural
    beat: Natural
    """How many came before."""
    time: float
    """When, in seconds since the epoch, by the clock of the host."""
    round: Natural
    phase: Plain
    calls: Natural
    waits: bool

    @property
    def who(self) -> str:
        """The rank, and where a person finds it."""
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"

    @property
    def where(self) -> str:
        """Its round and phase."""
        return place(self.round, self.phase)

    def age(self, now: float) -> float:
        """Seconds since it was written; not less than 0 where clocks differ."""
        return max(0.0, now - self.time)


def place(round: int, phase: str) -> str:
    """A round and a phase in words."""
    return f"in round {round}, {phase}" if round else phase


def read(path: Path) -> Heartbeat | None:
    """What the file says; None where it is missing, damaged or cannot be read."""
    try:
        return _read(path)
    except (OSError, ValueError):
        return None


def _read(path: Path) -> Heartbeat:
    """What the file says.

    Raises:
        OSError: it is missing, or cannot be read.
        ValueError: it is damaged, or just being written.
    """
    with path.open("rb") as file:
        content = file.read(SIZE)
    if not content:
        raise FileNotFoundError(errno.ENOENT, "nothing is written yet", path)
    return Heartbeat.model_validate_json(checksum.remove_from_json(content.rstrip(b" \n")))


def read_all(folder: Path) -> list[Heartbeat]:
    """The heartbeats in a folder, by rank.

    Raises:
        StoreError: one is damaged, or cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except (FileNotFoundError, NotADirectoryError):  # its session has just ended
        return []
    found = (_read_again(path) for path in paths)
    return [heartbeat for heartbeat in found if heartbeat is not None]


def _read_again(path: Path) -> Heartbeat | None:
    """What the file says, also where its rank is just writing it; None where the rank has left."""
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
                    f"{path}: found no heartbeat of a rank: {e}; its rank writes it anew every few "
                    "seconds: try again"
                ) from e
    return None


def read_newest(root: Path) -> list[Heartbeat]:
    """The heartbeats of the newest start of the run, by rank.

    Raises:
        StoreError: a heartbeat is damaged, or cannot be read.
    """
    sessions = [read_all(folder) for folder in (root.iterdir() if root.is_dir() else ())]
    return max(sessions, key=lambda beats: max((b.time for b in beats), default=-1.0), default=[])


def read_report(root: Path) -> str:
    """The line in which a rank said why the newest session ended; "" where none did.

    Raises:
        StoreError: it cannot be read.
        DiskError: the disk fails.
    """
    with readable(root):
        found = sorted(root.glob(f"*/{REPORT}"), key=lambda path: path.stat().st_mtime)
        return found[-1].read_text("utf-8", "replace").strip() if found else ""


class Heartbeats:
    """The heartbeat files of one session of a run, as one rank reads and writes them."""

    def __init__(self, root: Path, session: str, rank: int) -> None:
        self._root, self.folder, self._rank = root, root / session, rank
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._beats = 0

    def begin(self) -> None:
        """Make the folder, and remove those of earlier sessions; on one rank, before others open.

        Raises:
            DiskError: the disk fails.
        """
        with write_errors(self.folder):
            self.folder.mkdir(parents=True)
            for other in self._root.iterdir():
                if other != self.folder:
                    # A process that still writes there harms nobody.
                    shutil.rmtree(other, ignore_errors=True)

    def open(self, pulse: RankProgress) -> None:
        """Make this rank's file.

        Raises:
            DiskError: the disk is full or fails.
        """
        path = self._path(self._rank)
        with write_errors(path):
            path.write_bytes(self._say(pulse))

    def beat(self, pulse: RankProgress) -> None:
        """Write where the rank is now.

        The file is opened and closed for it, which is what shows it to the other hosts on NFS.

        Raises:
            OSError: the disk fails.
        """
        fd = os.open(self._path(self._rank), os.O_WRONLY)
        try:
            os.pwrite(fd, self._say(pulse), 0)
        finally:
            os.close(fd)

    def read(self, size: int) -> dict[int, Heartbeat]:
        """The heartbeats of ranks 0 to ``size - 1``, by rank, as far as they can be read."""
        found = ((rank, read(self._path(rank))) for rank in range(size))
        return {rank: heartbeat for rank, heartbeat in found if heartbeat is not None}

    def claim_report(self, line: str) -> bool:
        """Whether this rank is the first that would say why the run ends: the others need not."""
        try:
            with (self.folder / REPORT).open("x") as file:
                file.write(line + "\n")
        except FileExistsError:
            return False
        except OSError:  # rather twice than never
            return True
        return True

    def has_report(self) -> bool:
        """Whether a rank has reported why the run ends."""
        return (self.folder / REPORT).exists()

    def close(self) -> None:
        """Remove this rank's file, and the last rank the folder: it has left in good order."""
        with suppress(OSError):  # nobody needs it to be gone
            self._path(self._rank).unlink(missing_ok=True)
            self.folder.rmdir()

    def _path(self, rank: int) -> Path:
        return self.folder / f"{rank:04d}.json"

    def _say(self, pulse: RankProgress) -> bytes:
        heartbeat = Heartbeat(
            rank=self._rank,
            host=self._host,
            pid=self._pid,
            beat=self._beats,
            time=time.time(),
            round=pulse.round,
            phase=pulse.phase,
            calls=pulse.calls,
            waits=pulse.waits,
        )
        self._beats += 1
        return checksum.add_to_json(heartbeat.model_dump_json()).ljust(SIZE - 1) + b"\n"
