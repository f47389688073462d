"""End a run in which a rank died, was stopped or cut off, and say which one.

Every rank has one thread that writes its heartbeat and counts how long the rank has been inside
of one collective.  Beyond ``comm.timeout_s`` it reads the heartbeats of the others, one rank says
which is behind, and every rank that is alive ends: the launcher ends the rest.  The thread makes no
MPI call, which only the main thread may.

Before the first round it waits for others that are alive and busy as long as they are: they read
and compare a whole store, which takes what it takes.

Not covered: what comes before there are heartbeats, the meeting of the ranks and the loading of the
data, which may have to be fetched (MPI waits there as long as its launcher lets it; Gloo and NCCL
give up by themselves); and a file system that hangs, before the first round or for all ranks.
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

from hpcfl.comm.heartbeat import Heartbeat, Heartbeats, RankProgress, place
from hpcfl.comm.solo import end_process

PERIOD_S = 5.0  # between two heartbeats, at most ...
SHARE = 12  # ... and at most such a part of the time-out
LOOK = 3  # periods between two looks at a heartbeat: one that lives has beaten meanwhile
MOMENT_S = 1.0  # for the rank that speaks to be heard before a launcher ends it too
ADVICE = "resume from the last checkpoint"


class Watchdog:
    """The thread of one rank.

    Time is counted in turns of the thread, so that the time in which this process was itself
    stopped (Slurm suspends jobs), or a clock that jumped, is no waiting.
    """

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        self.progress = RankProgress()
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._period = min(PERIOD_S, timeout_s / SHARE)
        self._patience = math.ceil(timeout_s / self._period)  # turns
        self._files: Heartbeats | None = None
        self._mute = False
        self._over = Event()
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def watch_files(self, files: Heartbeats) -> None:
        """Write heartbeats from now on, and read those of the others when it is time."""
        files.open(self.progress)
        self._files = files

    def claim_report(self, line: str) -> bool:
        """Whether no other rank has said why the run ends."""
        return self._files is None or self._files.claim_report(line)

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()
        if self._files:
            self._files.close()

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
            if self._files.has_report():
                self._follow()
            if waited == self._patience - LOOK:
                before = self._files.read(self._size)
            if waited >= self._patience:
                now = self._files.read(self._size)
                wait = Wait(self.progress, self._rank, self._size, before, now)
                if wait.is_for_work():
                    waited = 0
                else:
                    self._tell(wait.blame(self._files.folder))

    def _beat(self) -> None:
        if self._files and not self._mute:
            try:
                self._files.beat(self.progress)
            except OSError as e:
                self._mute = True
                with suppress(AttributeError, OSError):
                    sys.stderr.write(
                        f"[rank {self._rank} of {self._size}] no more heartbeats in "
                        f"{self._files.folder} ({e.strerror}): were a rank to hang, this one would "
                        "be named\n"
                    )

    def _tell(self, why: str) -> None:
        """Say why the run ends, unless another rank does, and end this process."""
        line = (
            f"RankError: [rank {self._rank} of {self._size}] waited {self._timeout_s:g} s for the "
            f"other ranks, {place(self.progress.round, self.progress.phase)}: {why}"
        )
        if not self.claim_report(line):
            self._follow()
        try:
            sys.stderr.write(line + "\n")
        finally:  # where nobody can hear it, too
            end_process(1)

    def _follow(self) -> None:
        """End this process, another rank having said why."""
        time.sleep(MOMENT_S)
        end_process(1)


class Wait(NamedTuple):
    """A rank that waits in a collective, and what it can see of the others."""

    pulse: RankProgress
    """Its own."""
    rank: int
    size: int
    before: Mapping[int, Heartbeat]
    """Heartbeats by rank, a few periods ago."""
    now: Mapping[int, Heartbeat]

    @property
    def _others(self) -> list[int]:
        return [i for i in range(self.size) if i != self.rank]

    def is_for_work(self) -> bool:
        """Whether it may take any time: others, alive, prepare the rounds."""
        before, now = self.before, self.now
        alive = all(i in now and now[i] != before.get(i) for i in self._others)
        return self.pulse.round == 0 and alive and any(not now[i].waits for i in self._others)

    def blame(self, folder: Path) -> str:
        """Which rank keeps the others waiting, in words, and what to do.

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
        # One that waits in an earlier collective, which this rank has left, misses a message.
        behind = (now[i] for i in others if now[i].calls < self.pulse.calls)
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
