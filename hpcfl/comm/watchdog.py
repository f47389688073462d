"""End a run in which a rank has died, hangs or is cut off, and name that rank.

MPI waits for ever for a rank that has died unnoticed.  So every rank has a thread that writes its
heartbeat and measures the time that the rank has been in one collective.  After ``comm.timeout_s``
it reads the heartbeats of the other ranks.  One rank reports which rank is behind, every rank that
can ends itself, and the launcher ends the others.  A thread, because the main thread is blocked in
the collective; it makes no MPI call, which only the main thread may.

Before the first round the time is not limited while another rank is alive and not in a collective:
ranks read and verify whole stores then, for as long as the disk needs.

Not covered: the time before heartbeats are started, when the ranks connect and load their data
(MPI waits there until its launcher gives up; Gloo and NCCL have time-outs of their own); and a file
system that hangs, before the first round or for all ranks.
"""

import math
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from hpcfl.comm.in_time import LAST_S, in_time
from hpcfl.comm.solo import end_process
from hpcfl.errors import one_line
from hpcfl.io.heartbeat import (
    LOST_CODE,
    Heartbeat,
    Heartbeats,
    RankProgress,
    round_and_phase,
)

PERIOD_S = 5.0  # between two heartbeats, at most ...
PERIODS_PER_TIMEOUT = 12  # at least
COMPARED_PERIODS = 3  # between two readings of the heartbeats: a live rank writes in between
REPORT_S = 1.0  # for the launcher to read the reporting rank's line, before it ends that rank
ADVICE = "resume from the last checkpoint"


class Watchdog:
    """The watchdog thread of one rank.

    It counts periods of its own, not the clock's time: time in which this process itself was
    stopped (Slurm suspends jobs), or by which the clock jumped, must not count as waiting.
    """

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        self.progress = RankProgress()
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._period = min(PERIOD_S, timeout_s / PERIODS_PER_TIMEOUT)
        self._patience = math.ceil(timeout_s / self._period)  # periods
        self._files: Heartbeats | None = None
        self._failed = False
        self._reports = False  # this rank does, and ends by itself
        self._over = Event()
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def watch_files(self, files: Heartbeats) -> None:
        """Write heartbeats into ``files`` from now on, and limit the time in collectives."""
        files.open(self.progress)
        self._files = files

    def claim_report(self, line: str, code: int | None) -> bool:
        """Whether this rank shall print ``line``, see ``Heartbeats.claim_report``."""
        files, self._reports = self._files, True
        if files:
            with suppress(TimeoutError):  # the file system hangs
                self._reports = in_time(LAST_S, lambda: files.claim_report(line, code))
        return self._reports

    def reported_code(self) -> int:
        """The exit code in the report of another rank."""
        with suppress(TimeoutError):
            if self._files:
                return in_time(LAST_S, self._files.reported_code)
        return LOST_CODE

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(LAST_S)
        if self._files:
            with suppress(TimeoutError):
                in_time(LAST_S, self._files.close)

    def _watch(self) -> None:
        calls = waited = 0
        before: Mapping[int, Heartbeat] = {}
        while not self._over.wait(self._period):
            self._beat()
            waited = waited + 1 if self.progress.waits and self.progress.calls == calls else 0
            calls = self.progress.calls
            if not self._files:
                waited = 0
                continue
            if not self._reports and self._files.report_has_code():
                self._end_after_report()
            if waited == self._patience - COMPARED_PERIODS:
                before = self._files.read(self._size)
            if waited >= self._patience:
                now = self._files.read(self._size)
                wait = Wait(self.progress, self._rank, self._size, before, now)
                if wait.is_for_preparation():
                    waited = 0
                else:
                    self._report(wait.explain(self._files.folder))

    def _beat(self) -> None:
        if self._files and not self._failed:
            try:
                self._files.beat(self.progress)
            except OSError as e:
                self._failed = True
                with suppress(AttributeError, OSError):
                    text = (
                        f"[rank {self._rank} of {self._size}] no more heartbeats in "
                        f"{self._files.folder} ({e.strerror}): were a rank to hang, this one would "
                        "be named"
                    )
                    sys.stderr.write(f"{one_line(text)}\n")

    def _report(self, reason: str) -> None:
        """Print why the run ends, unless another rank does, and end this process."""
        line = (
            f"RankError: [rank {self._rank} of {self._size}] waited {self._timeout_s:g} s for the "
            f"other ranks, {round_and_phase(self.progress.round, self.progress.phase)}: {reason}"
        )
        if not self.claim_report(line, LOST_CODE):
            self._end_after_report()
        try:
            in_time(LAST_S, lambda: sys.stderr.write(one_line(line) + "\n"))
        finally:  # also where standard error is closed, or a full pipe that nobody reads
            end_process(LOST_CODE)

    def _end_after_report(self) -> None:
        """End this process as another rank, which has reported the reason, some time after it."""
        time.sleep(REPORT_S)
        if not self._reports:  # this rank may have done so just now
            end_process(self.reported_code())


class Wait(NamedTuple):
    """A rank that has waited too long in a collective, and the heartbeats of the others."""

    progress: RankProgress
    """Of the rank that waits."""
    rank: int
    size: int
    before: Mapping[int, Heartbeat]
    """Heartbeats by rank, read ``COMPARED_PERIODS`` periods ago."""
    now: Mapping[int, Heartbeat]

    @property
    def _others(self) -> list[int]:
        return [i for i in range(self.size) if i != self.rank]

    def is_for_preparation(self) -> bool:
        """Whether it waits, before the first round, for ranks that are alive and not waiting."""
        before, now = self.before, self.now
        alive = all(i in now and now[i] != before.get(i) for i in self._others)
        return self.progress.round == 0 and alive and any(not now[i].waits for i in self._others)

    def explain(self, folder: Path) -> str:
        """Say in words which rank keeps the others waiting, and what to do.

        Args:
            folder: where the heartbeats are.
        """
        before, now, others = self.before, self.now, self._others
        clock = time.time()
        seen = [i for i in others if i in now and i in before]
        silent = [now[i] for i in seen if now[i].beat == before[i].beat]
        if silent:
            oldest = max(silent, key=lambda found: found.age(clock))
            return (
                f"{oldest.who} was last heard of {oldest.age(clock):.0f} s ago, {oldest.where}"
                f"{_besides(silent)}; {ADVICE}"
            )
        lost = [i for i in others if i not in now]
        if lost:
            return f"rank {lost[0]} has no readable heartbeat in {folder}{_besides(lost)}; {ADVICE}"
        # A rank that waits in an earlier collective, which this rank has left, did come: what it
        # waits for was lost on the way to it.
        behind = (now[i] for i in others if now[i].calls < self.progress.calls)
        late = [found for found in behind if not found.waits]
        if late:
            last = min(late, key=lambda found: found.calls)
            return (
                f"{last.who} is alive, {last.where}, but did not come{_besides(late)}; if it is "
                f"not stuck but needs more time, raise comm.timeout_s; {ADVICE}"
            )
        hosts = sorted({found.host for found in now.values()} | {socket.gethostname()})
        return (
            f"all of them are alive and wait too: is the network between them ({', '.join(hosts)}) "
            f"cut? {ADVICE}"
        )


def _besides(found: list[int] | list[Heartbeat]) -> str:
    more = len(found) - 1
    return f" (and {more} more likewise)" if more else ""
