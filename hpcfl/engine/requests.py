"""Requests at the end of a round, on which all ranks agree by a maximum."""

from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.engine.run import Run


class RoundRequests(NamedTuple):
    """Requests of one rank at the end of a round, or their maximum over ranks, which is obeyed.

    They are sent with the maximum that the mean of the uploads needs anyway, so that a stop or a
    checkpoint costs no further message, and every rank takes the same decision.
    """

    stop: int
    """The number of the signal that requested a stop; 0: none."""
    save: bool
    """Write a checkpoint: a signal requested it, or ``checkpoint.minutes`` have passed."""
    writing: bool
    """A rank is still writing its part of the pending checkpoint."""

    @classmethod
    def of(cls, maxima: NDArray[np.float64]) -> "RoundRequests":
        """The requests in the maxima over ranks of ``local_values``."""
        stop, *others = maxima[: len(cls._fields)]
        return cls(int(stop), *map(bool, others))

    @classmethod
    def metrics(cls, maxima: NDArray[np.float64]) -> NDArray[np.float64]:
        """The maxima over ranks of ``RoundTimer.local_metrics``, in those of ``local_values``."""
        return maxima[len(cls._fields) :]


def local_values(run: Run, saved: float) -> NDArray[np.float64]:
    """This rank's ``RoundRequests``, followed by ``RoundTimer.local_metrics``.

    ``saved`` is the time of the last checkpoint, in seconds of ``time.monotonic``.
    """
    minutes = run.schedule.checkpoint_minutes
    late = minutes is not None and monotonic() - saved > 60 * minutes
    requests = RoundRequests(
        run.signals.stop, run.signals.save or late, *run.hooks.checkpoint_state
    )
    return np.array([*requests, *run.timer.local_metrics()])
