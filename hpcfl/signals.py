"""Signals that ask a run to stop or to checkpoint; latched here, agreed on by the engine."""

import signal
from types import FrameType
from typing import Any, Self

from hpcfl.errors import Stopped

STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAVE = signal.SIGUSR2


class Signals:
    """What was asked of this process; a context manager that listens while it is open.

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
