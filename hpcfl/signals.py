"""Signals that ask a run to stop or to checkpoint; latched here, agreed on by the engine."""

import signal
from types import FrameType

STOP = (signal.SIGTERM, signal.SIGUSR1)
SAVE = signal.SIGUSR2


class Signals:
    """What was asked of this process since the start.

    The first signal to stop counts; those that follow it (Slurm sends SIGCONT and more) do not.
    """

    def __init__(self) -> None:
        self.stop = 0
        """The number of the signal that asked for a stop, or 0."""
        self.save = False
        """Whether a checkpoint was asked for."""

    def listen(self) -> "Signals":
        """Begin to latch; only the main thread may."""
        for number in STOP:
            signal.signal(number, self._latch_stop)
        signal.signal(SAVE, self._latch_save)
        return self

    def _latch_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop = self.stop or number

    def _latch_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True
