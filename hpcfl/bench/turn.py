"""A run whose rounds are played in turns, to be timed against something else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch import Tensor

from hpcfl.engine import play
from hpcfl.runlog import RunLog
from hpcfl.runtime import Run
from hpcfl.types import Record, Vector


class Desk:
    """Takes the log down, as a run does; evaluates and commits nothing."""

    pending = False, False

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self.waited = 0.0
        """Seconds that the rounds waited for client states."""

    def begin(self, round: int) -> None:
        """Nobody watches."""

    def evaluate(self, round: int, x: Vector) -> Record:
        """No scores."""
        return {}

    def record(self, record: Record, busy: Sequence[float]) -> None:
        """Write the line of a round."""
        self.waited += record.get("store_s", 0.0)
        self._log.write(record)

    def save(self, round: int, server: Any, kept: Mapping[str, Tensor]) -> None:
        """Commit nothing."""

    def settle(self, round: int) -> None:
        """Nothing is on its way."""


class Engine:
    """Plays so many rounds of a run a turn."""

    def __init__(self, run: Run, rounds: int) -> None:
        self._run, self._turn, self._done = run, rounds, 0
        self._server = run.algorithm.init_server(run.x0)

    @property
    def x(self) -> Vector:
        """The model so far."""
        return self._server.x  # type: ignore[no-any-return]

    def __call__(self) -> float:
        """Play the next rounds; the seconds that they took."""
        end = self._done + self._turn
        began = perf_counter()
        self._server = play(replace(self._run, rounds=end), self._server, self._done)
        self._done = end
        return perf_counter() - began
