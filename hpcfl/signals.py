"""Signals that ask a run to stop or to checkpoint; latched here, agreed on by the engine."""

import signal
from types import FrameType
from typing import Any, Self

from hpcfl.errors import Stopped

STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAVE = signal.SIGUSR2
BATCH = (signal.SIGTERM, signal.SIGUSR1)
"""What a batch system sends to ask for a stop; it may do so while the program still starts."""


class _Latched:
    """What was asked of this process before a ``Signals`` was open."""

    stop = 0
    save = False


def latch_early() -> None:
    """Latch a batch system's signals from now on; the next ``Signals`` that opens takes them over.

    Called before the slow imports and the set-up, in which such a signal would kill the process:
    nothing would be left to tell a stop that was asked for from a crash.  Only a process's main
    thread can call it.
    """
    for number in BATCH:
        signal.signal(number, _latch_stop_early)
    signal.signal(SAVE, _latch_save_early)


def _latch_stop_early(number: int, frame: FrameType | None) -> None:
    _Latched.stop = _Latched.stop or number


def _latch_save_early(number: int, frame: FrameType | None) -> None:
    _Latched.save = True


def stopped(number: int, done: int, rounds: int) -> Stopped:
    """The end of a run that the signal ``number`` stopped after ``done`` of ``rounds`` rounds."""
    return Stopped(
        f"stopped by {signal.Signals(number).name} after round {done} of {rounds}, with a "
        "checkpoint: resume to go on"
    )


class Signals:
    """What was asked of this process; a context manager that listens while it is open.

    It begins with what ``latch_early`` latched.

    The first signal to stop counts; those that follow it (Slurm sends more than one) do not, but
    for a SIGINT (Ctrl-C) after another signal: whoever presses it twice does not want to wait.
    A context that ends by Stopped goes on latching: the process is on its way out, and signals
    that follow must not change its exit code.  Only a process's main thread can open it.
    """

    def __init__(self, *, latch_interrupt: bool = True) -> None:
        self.latch_interrupt = latch_interrupt
        """Whether a first SIGINT waits to be agreed on, as those of batch systems do; else it
        raises KeyboardInterrupt.  False while there is nothing that is worth the wait."""
        self.stop = 0
        """The number of the signal that asked for a stop, or 0."""
        self.save = False
        """Whether a checkpoint was asked for."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in STOP:
            self._before[number] = signal.signal(number, self._latch_stop)
        self._before[SAVE] = signal.signal(SAVE, self._latch_save)
        self.stop, self.save = self.stop or _Latched.stop, self.save or _Latched.save
        _Latched.stop, _Latched.save = 0, False
        return self

    def __exit__(self, *exception: object) -> None:
        if not isinstance(exception[1], Stopped):
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _latch_stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (self.stop or not self.latch_interrupt):
            raise KeyboardInterrupt
        self.stop = self.stop or number

    def _latch_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True
