"""Collect the facts that `hpcfl status` shows of a run from its files."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal

from hpcfl.comm.heartbeat import Heartbeat, read_newest
from hpcfl.errors import StoreError
from hpcfl.report import timing
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import LogReader
from hpcfl.run_dir.manifest import MANIFEST, committed_folders
from hpcfl.run_dir.record import RunRecord, read_record, require_log, with_history

RECENT = 100  # rounds over which speeds and shares of the time are taken
LATE_S = 30.0  # a rank writes a heartbeat every 5 s or more often: older ones are marked
DISK_S = 10.0  # between two sums of file sizes, which walk through all folders of a run


class RunFacts(NamedTuple):
    """A run at one moment."""

    folder: RunDir
    record: RunRecord
    """Its job, log and outcome."""
    history: Sequence[Mapping[str, Any]]

    def heartbeats(self) -> Sequence[Heartbeat]:
        """Read the newest heartbeat of every rank; none if the run is not alive.

        Raises:
            StoreError: one is damaged.
        """
        return read_newest(self.folder.ranks) if self.record.alive else []

    @property
    def recent(self) -> Sequence[Mapping[str, Any]]:
        """The log's lines of the last RECENT rounds."""
        return [line for line in self.record.log[-RECENT:] if line["round"]]

    @property
    def speed(self) -> float | None:
        """Rounds per second of wall time, over the last RECENT rounds."""
        return timing.pace(self.recent)

    @property
    def time_left(self) -> timedelta | None:
        """Time until the last round at the present speed; None if it is not alive."""
        if not self.record.alive or not self.speed:
            return None
        return timedelta(seconds=round((self.record.rounds - self.record.done) / self.speed))


class RunObserver:
    """Reads one run again and again; only what changed since the last time is parsed."""

    def __init__(self, root: Path) -> None:
        self._folder, self._log = RunDir(root), LogReader(RunDir(root).log)
        self._versions: tuple[int, int] | None = None
        self._job: RunRecord
        self._history: Sequence[Mapping[str, Any]] = ()
        self._compared: Path | None = None  # the checkpoint that the log was compared with
        self._sizes, self._sizes_due = "", 0.0

    def read(self, *, failed: bool = False) -> RunFacts:
        """Read the run as it is now; ``failed``: the sweep that made it saw it fail last.

        Raises:
            JobError: the directory holds no run.
            StoreError: a file of the run is damaged.
        """
        folder = self._folder
        # Before its log: of a run that is dead by then, the log is complete.
        alive = folder.is_locked()
        versions = self._changed_ns()
        if versions != self._versions:  # a start or an end has written the history
            self._history = _read_history(folder)
            self._job = with_history(read_record(folder.root), self._history)
            self._versions = versions
        log = self._log.read()
        kept = committed_folders(folder.checkpoints)[-1:]
        if kept and kept[0] != self._compared:
            require_log(folder)
            self._compared = kept[0]
        record = replace(self._job, log=log, alive=alive, failed=failed)
        return RunFacts(folder, record, self._history)

    def sizes(self) -> str:
        """Bytes of its checkpoints and stores on the disk, as of DISK_S ago at most."""
        if time.monotonic() >= self._sizes_due:
            folder = self._folder
            self._sizes = f"{_disk(folder.checkpoints)} checkpoints, {_disk(folder.stores)} stores"
            self._sizes_due = time.monotonic() + DISK_S
        return self._sizes

    def _changed_ns(self) -> tuple[int, int]:
        """When the job and the history were last written."""
        history = self._folder.history
        known = history.stat().st_mtime_ns if history.exists() else 0
        job = self._folder.job
        return job.stat().st_mtime_ns if job.exists() else 0, known


def newest_checkpoint(checkpoints: Path) -> str:
    """The round and the age of the newest checkpoint."""
    for folder in reversed(committed_folders(checkpoints)):
        with suppress(FileNotFoundError):  # the run has deleted it meanwhile
            written = (folder / MANIFEST).stat().st_mtime
            age = timedelta(seconds=max(0, round(time.time() - written)))
            return f"round {int(folder.name)}, {age} ago"
    return "none yet"


def _read_history(folder: RunDir) -> list[dict[str, Any]]:
    """Read the history, and check that its entries have the keys that are shown."""
    entries = folder.history_entries()
    for number, entry in enumerate(entries, 1):
        needed = ("time", "round", "ranks") if "session" in entry else ("time", "round")
        absent = [key for key in needed if key not in entry]
        if absent:
            raise StoreError(f"{folder.history}:{number}: found no {absent[0]!r}: of no start")
    return entries


def _disk(root: Path) -> str:
    """The size on the disk of the files below ``root``."""
    taken = 0
    for folder, _, names in os.walk(root, onerror=_unless_gone):
        for name in names:
            with suppress(FileNotFoundError):
                taken += Path(folder, name).stat().st_blocks * 512
    return decimal(taken)


def _unless_gone(error: OSError) -> None:
    """Raise the error, unless the run has deleted the folder meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error
