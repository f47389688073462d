"""Define ``Run``, the objects that the round loop works with, and ``RunHooks``, which it calls.

The engine itself writes no file: ``RunHooks`` evaluates, and writes the log and checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.base import Algorithm
from hpcfl.clients.assignment import Assignment
from hpcfl.clients.client_pool import ClientPool
from hpcfl.clients.client_states import ClientStates
from hpcfl.clients.participation import Participation
from hpcfl.clients.remote_states import RemoteClientStates
from hpcfl.comm.base import Comm
from hpcfl.comm.reduction import Reduction
from hpcfl.engine.diagnostics import Observer
from hpcfl.engine.dry_round import RoundSchema
from hpcfl.engine.timing import RoundTimer, SimulatedClock
from hpcfl.io.signals import Signals
from hpcfl.local.executor import Executor
from hpcfl.types import IntArray, Record, Vector


class CheckpointState(NamedTuple):
    """The pending checkpoint on one rank."""

    writing: bool
    """This rank is still writing its part of it."""


class RunHooks(Protocol):
    """Evaluation, log and checkpoints of a run.

    ``evaluate``, ``ends``, ``begin_checkpoint`` and ``commit_checkpoint`` are collective.
    """

    def begin_round(self, round: int) -> None:
        """Note that a round begins, counted as the log does."""
        ...

    def evaluate(self, round: int, x: Vector) -> Mapping[str, float]:
        """Scores of the model after ``round`` rounds."""
        ...

    def record(self, record: Record, busy: Sequence[float], x: Vector) -> None:
        """Write a round's line of the log, and show it and the model ``x`` to callbacks.

        ``busy``: each rank's seconds of work, if several.
        """
        ...

    def ends(self, round: int) -> bool:
        """Whether the run ends after ``round`` rounds, before the last one; called after each."""
        ...

    def begin_checkpoint(self, round: int, server: Any) -> None:
        """Begin a checkpoint after ``round`` rounds; a pending one is committed first."""
        ...

    @property
    def checkpoint_state(self) -> CheckpointState:
        """Whether this rank is still writing a checkpoint, and whether rounds must wait for it."""
        ...

    def commit_checkpoint(self, round: int) -> None:
        """Commit the pending checkpoint, if there is one; ``round`` rounds are completed."""
        ...


@dataclass(frozen=True)
class Schedule:
    """The plan of all rounds; the same on every rank, except for ``assignment``."""

    rounds: int
    participation: Callable[[int], Participation]
    """From a round, counted from zero, to who takes part in it, and how."""
    assignment: Callable[[int], Assignment]
    """From a round to the clients of this rank; to none after the last round."""
    weights: Callable[[int, IntArray], NDArray[np.float64]]
    """From a round and its members to the weight of each in the mean of the uploads."""
    local_lr: Callable[[int], float]
    """From a round to its local learning rate."""
    evaluation_due: Callable[[int], bool]
    """Whether the model after so many rounds is evaluated."""
    checkpoint_due: Callable[[int], bool]
    """Whether a checkpoint is committed after so many rounds, whatever the clock says."""
    checkpoint_minutes: float | None
    """A checkpoint is also due so many minutes after the last one; None: never."""


@dataclass(frozen=True)
class Choice:
    """How clients are chosen by their losses, where ``Schedule`` cannot know the cohorts."""

    candidates: Callable[[int], IntArray]
    """From a round to the clients that send their loss."""
    owned: NDArray[np.bool_]
    """[N], the clients whose loss this rank computes."""
    losses: Callable[[Sequence[int], Vector], Sequence[float]]
    """From clients and a model, with its running statistics, to the mean loss over all training
    examples of each."""
    choose: Callable[[int, IntArray, NDArray[np.float64]], Participation]
    """From a round, its candidates and their losses to who takes part."""
    assignment: Callable[[int, Participation], Assignment]
    """From a round and who takes part in it to the clients of this rank."""


@dataclass(frozen=True)
class WarmStartGroups:
    """All clients in groups, for the pass of a warm start; no groups where none is needed."""

    sizes: Sequence[int]
    """Clients of each group."""
    assignment: Callable[[int], Assignment]
    """From a group's number to the clients of this rank; to none after the last group."""
    first_state: Callable[[int, Vector], Any]
    """From a client and its full gradient at the initial model to its first state."""


@dataclass(frozen=True)
class Training:
    """The clients, their executor and their states."""

    clients: ClientPool
    executor: Executor
    states: ClientStates | RemoteClientStates


@dataclass(frozen=True)
class Run:
    """The objects of a run on one rank."""

    algorithm: Algorithm
    schema: RoundSchema
    x0: Vector
    """[P], of a warm start; a meta tensor where no round needs its values."""
    warm_start_groups: WarmStartGroups
    schedule: Schedule
    choice: Choice | None
    """None where the seed determines the cohorts."""
    training: Training
    comm: Comm
    uploads: Reduction
    """The mean of the uploads, each with its client's training loss."""
    full_gradients: Reduction
    """The mean of the full gradients, for algorithms that use it."""
    observer: Observer
    hooks: RunHooks
    signals: Signals
    timer: RoundTimer
    clock: SimulatedClock | None
    """The simulated time of the clients' devices; None where the job has none."""
