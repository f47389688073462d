"""The live objects of a run on one rank, and what the engine asks of their surroundings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.algorithms.base import Algorithm
from hpcfl.cohort.assignment import Assignment
from hpcfl.comm.base import Comm
from hpcfl.comm.reduction import Reduction
from hpcfl.engine.diagnostics import Observer
from hpcfl.engine.schema import Schema
from hpcfl.engine.timing import RoundTimer
from hpcfl.local.client_pool import ClientPool
from hpcfl.local.client_states import ClientStates
from hpcfl.local.executor import Executor
from hpcfl.local.remote_states import RemoteClientStates
from hpcfl.signals import Signals
from hpcfl.types import Record, Vector


class Desk(Protocol):
    """What the engine hands to the run's surroundings; all but ``begin`` is collective."""

    def begin(self, round: int) -> None:
        """Take note that a round begins, counted as the log does."""
        ...

    def evaluate(self, round: int, x: Vector) -> Mapping[str, float]:
        """Scores of the model after ``round`` rounds."""
        ...

    def record(self, record: Record, busy: Sequence[float]) -> None:
        """Take down what a round gave, and on several ranks the seconds that each was busy."""
        ...

    def save(self, round: int, server: Any, kept: Mapping[str, Tensor]) -> None:
        """Begin a checkpoint of the state after ``round`` rounds, with what was ``kept`` too."""
        ...

    @property
    def pending(self) -> tuple[bool, bool]:
        """Whether this rank still writes a checkpoint, and whether rounds must wait for it."""
        ...

    def settle(self, round: int) -> None:
        """Commit the checkpoint that is on its way, if one is, after ``round`` rounds."""
        ...


class Due(Protocol):
    """When something is to be done, by rounds completed out of all."""

    def __call__(self, round: int, rounds: int) -> bool:
        """Whether it is due."""
        ...


@dataclass(frozen=True)
class Run:
    """The live objects of a run on one rank."""

    algorithm: Algorithm
    rounds: int
    draw: Callable[[int], NDArray[np.int64]]  # round -> its cohort, the same on every rank
    rate: Callable[[int], float]  # round -> eta
    weights: NDArray[np.float64]  # [N], of every client
    duty: Callable[[int], Assignment]  # round -> what falls to this rank
    population: ClientPool
    executor: Executor
    memories: ClientStates | RemoteClientStates
    comm: Comm
    reduction: Reduction  # of uploads, each with its train_loss
    surveys: Reduction  # of full gradients
    observer: Observer
    schema: Schema
    x0: Vector
    evaluation: Due
    checkpoint: Due
    minutes: float | None
    signals: Signals
    desk: Desk
    account: RoundTimer

    def mine(self, round: int) -> list[int]:
        """The members of a round's cohort that this rank trains; of a round past the end, none."""
        return self.duty(round).trained
