"""What the ranks ask of the engine at the end of a round, agreed on by a maximum."""

from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.engine.run import Run


class RoundSignals(NamedTuple):
    """What one rank asks for at the end of a round, or the maximum over ranks, which is acted on.

    The maximum is taken along with the one that the mean of the uploads needs, so that asking costs
    no message of its own.
    """

    stop: int
    """The number of the signal that asked for a stop; 0: none did."""
    save: bool
    """A checkpoint is wanted: a signal asked for it, or the minutes between two have passed."""
    writing: bool
    """A rank still writes its part of a checkpoint."""
    low_on_rows: bool
    """A store is nearly out of rows: the pending checkpoint must be committed to free some."""

    @classmethod
    def of(cls, maxima: NDArray[np.float64]) -> "RoundSignals":
        """From the maxima over ranks of what ``local_values`` gives."""
        stop, *others = maxima[: len(cls._fields)]
        return cls(int(stop), *map(bool, others))

    @classmethod
    def metrics(cls, maxima: NDArray[np.float64]) -> NDArray[np.float64]:
        """The maxima over ranks of what ``RoundTimer.local_metrics`` gives."""
        return maxima[len(cls._fields) :]


def local_values(run: Run, saved: float) -> NDArray[np.float64]:
    """This rank's ``RoundSignals``, followed by ``RoundTimer.local_metrics``.

    ``saved`` is when the last checkpoint was begun, in seconds of ``time.monotonic``.
    """
    minutes = run.schedule.checkpoint_minutes
    late = minutes is not None and monotonic() - saved > 60 * minutes
    writing, low_on_rows = run.hooks.checkpoint_pending
    signals = RoundSignals(run.signals.stop, run.signals.save or late, writing, low_on_rows)
    return np.array([*signals, *run.timer.local_metrics()])
