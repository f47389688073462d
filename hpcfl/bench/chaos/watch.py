"""Watch an attempt from outside, and decide when to kill it."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from hpcfl.bench.chaos.attempt import PATIENCE_S, Attempt
from hpcfl.bench.chaos.kill import Kill
from hpcfl.bench.chaos.run_outcome import interrupted, marks
from hpcfl.run_dir.layout import RunDir

FAR = 12  # rounds that an attempt gets at most, if the system call does not come


@dataclass
class Pace:
    """Seconds of each phase in the attempts so far; random instants are spread over them."""

    load: float = 2.0
    """From the start of the process to the lock of the run directory."""
    resume: float = 0.2
    """From there to the start that the history notes."""
    round: float = 0.05
    """A round and its part of the checkpoints."""

    def learn(self, name: str, seconds: float) -> None:
        """Update a phase with one more attempt."""
        setattr(self, name, (getattr(self, name) + seconds) / 2)


class Seen(NamedTuple):
    """The rounds of an attempt, as seen from outside."""

    rounds: int = 0
    """How many it played."""
    began: int | None = None
    """The round that it resumed from; None if it did not get so far."""
    committed: int = -1
    """The newest round that was ever committed until it ended; -1 if none was."""


class Watch:
    """Polls an attempt."""

    def __init__(self, attempt: Attempt, folder: RunDir, pace: Pace) -> None:
        self._attempt, self._folder, self._pace = attempt, folder, pace
        self._began = self._changed = time.monotonic()
        self._first = self._last = marks(folder)
        self._locked: float | None = None
        self._noted: float | None = None
        self._base = 0  # lines of the log when the start was noted
        self._committed = self._first.committed
        self._commits = 0  # changes of the checkpoints since then
        self._due: float | None = None

    def look(self) -> None:
        """Update the state of the attempt from its files."""
        now, found = time.monotonic(), marks(self._folder)
        if self._noted is not None and found.checkpoints != self._last.checkpoints:
            self._commits += 1
        self._committed = max(self._committed, found.committed)
        if found != self._last:
            self._changed, self._last = now, found
        if self._locked is None and self._attempt.has_open(self._folder.root / "lock"):
            self._locked = self._changed = now
            self._pace.learn("load", now - self._began)
        if self._noted is None and found.starts != self._first.starts:
            self._noted, self._base = now, found.rounds
            if self._locked is not None:
                self._pace.learn("resume", now - self._locked)

    @property
    def hangs(self) -> bool:
        """Whether nothing new was seen for very long."""
        return time.monotonic() - self._changed > PATIENCE_S

    @property
    def rounds(self) -> int:
        """How many it has played."""
        return 0 if self._noted is None else max(0, self._last.rounds - self._base)

    def due(self, kill: Kill) -> bool:
        """Whether the instant of a kill has come; for one at a system call, that it is missed."""
        now = time.monotonic()
        if self._due is None:
            begun, length = {
                "import": (True, self._pace.load),
                "resume": (self._locked is not None, self._pace.resume),
                "checkpoint": (self._commits >= kill.nth, self._pace.round),
                "round": (self.rounds >= kill.nth, self._pace.round),
            }.get(kill.at, (self.rounds >= FAR, 0.0))
            if begun:
                self._due = now + kill.moment * length
        return self._due is not None and now >= self._due

    def settle(self) -> None:
        """Learn the pace of its rounds, once it is over."""
        self.look()
        if self._noted is not None and self.rounds > 1:
            self._pace.learn("round", (self._changed - self._noted) / self.rounds)

    @property
    def seen(self) -> Seen:
        """The rounds of an attempt that has ended."""
        began = None if self._noted is None else int(self._folder.last_start["round"])
        return Seen(self.rounds, began, self._committed)

    def phase(self, keep: int) -> str:
        """The phase of a killed attempt: import, resume, checkpoint, pruning or round."""
        if self._noted is None:
            return "import" if self._locked is None else "resume"
        return interrupted(self._folder, keep)
