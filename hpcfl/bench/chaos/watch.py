"""Poll the files of an attempt, one start of the tested run, and decide when to kill it."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from hpcfl.bench.chaos.attempt import PATIENCE_S, Attempt
from hpcfl.bench.chaos.kill import Kill
from hpcfl.bench.chaos.run_outcome import interrupted, read_progress
from hpcfl.run_dir.layout import RunDir

FALLBACK_ROUNDS = 12
"""Rounds after which an attempt is killed if the drawn system call has not come."""


@dataclass
class PhaseDurations:
    """Estimated seconds of each phase, from the attempts so far, to draw instants within it."""

    load: float = 2.0
    """From the start of the process to the lock of the run directory."""
    resume: float = 0.2
    """From there to the entry of the start in the history."""
    round: float = 0.05
    """A round, including its share of the checkpoints."""

    def update(self, name: str, seconds: float) -> None:
        """Average the estimate of a phase with the seconds of one more attempt."""
        setattr(self, name, (getattr(self, name) + seconds) / 2)


class RoundsSeen(NamedTuple):
    """The rounds of an attempt, from its files."""

    rounds: int = 0
    """The number of rounds that it completed."""
    began: int | None = None
    """The round that it started from; None if it ended before it recorded that."""
    committed: int = -1
    """The newest round that was ever committed before it ended; -1 if none was."""


class AttemptMonitor:
    """Follows an attempt from its start to its end."""

    def __init__(self, attempt: Attempt, folder: RunDir, durations: PhaseDurations) -> None:
        self._attempt, self._folder, self._durations = attempt, folder, durations
        self._began = self._changed = time.monotonic()
        self._first = self._last = read_progress(folder)
        self._locked: float | None = None
        self._recorded: float | None = None
        self._base = 0  # lines of the log when the history got this start's entry
        self._committed = self._first.committed
        self._checkpoint_changes = 0  # changes of the folder of checkpoints since then
        self._due: float | None = None

    def poll(self) -> None:
        """Read the files of the attempt, and update its state."""
        now, current = time.monotonic(), read_progress(self._folder)
        if self._recorded is not None and current.checkpoints != self._last.checkpoints:
            self._checkpoint_changes += 1
        self._committed = max(self._committed, current.committed)
        if current != self._last:
            self._changed, self._last = now, current
        if self._locked is None and self._attempt.has_open(self._folder.root / "lock"):
            self._locked = self._changed = now
            self._durations.update("load", now - self._began)
        if self._recorded is None and current.starts != self._first.starts:
            self._recorded, self._base = now, current.rounds
            if self._locked is not None:
                self._durations.update("resume", now - self._locked)

    @property
    def hangs(self) -> bool:
        """Whether its files have not changed for ``PATIENCE_S``."""
        return time.monotonic() - self._changed > PATIENCE_S

    @property
    def rounds(self) -> int:
        """The number of rounds completed so far."""
        return 0 if self._recorded is None else max(0, self._last.rounds - self._base)

    def due(self, kill: Kill) -> bool:
        """Whether the instant of a kill has come, or its system call has not come for too long."""
        now = time.monotonic()
        if self._due is None:
            begun, length = {
                "import": (True, self._durations.load),
                "resume": (self._locked is not None, self._durations.resume),
                "checkpoint": (self._checkpoint_changes >= kill.nth, self._durations.round),
                "round": (self.rounds >= kill.nth, self._durations.round),
            }.get(kill.at, (self.rounds >= FALLBACK_ROUNDS, 0.0))
            if begun:
                self._due = now + kill.phase_fraction * length
        return self._due is not None and now >= self._due

    def end(self) -> None:
        """Update the estimate for a round, after the attempt has ended."""
        self.poll()
        if self._recorded is not None and self.rounds > 1:
            self._durations.update("round", (self._changed - self._recorded) / self.rounds)

    @property
    def seen(self) -> RoundsSeen:
        """The rounds of an attempt that has ended."""
        began = None if self._recorded is None else int(self._folder.last_start["round"])
        return RoundsSeen(self.rounds, began, self._committed)

    def phase(self, keep: int) -> str:
        """The phase of a killed attempt: import, resume, checkpoint, pruning or round.

        Args:
            keep: how many checkpoints the run keeps.
        """
        if self._recorded is None:
            return "import" if self._locked is None else "resume"
        return interrupted(self._folder, keep)
