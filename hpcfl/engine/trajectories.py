"""Record where every client is after each local step, and the server after each round.

For pictures of client drift on models of a few parameters: every point is copied to the CPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.algorithms.base import Algorithm, Client, Cohort, Grad
from hpcfl.engine.loop import run_rounds
from hpcfl.engine.run import CheckpointState, Run
from hpcfl.local.sequential import Sequential
from hpcfl.local.sgd import Sgd
from hpcfl.local.step import ClientResult, ClientTask, Gradient
from hpcfl.types import Record, Vector

Points = NDArray[np.float64]  # [n, P]


class ClientTrajectory(NamedTuple):
    """The local models of one client in one round."""

    client: int
    points: Points
    """[K + 1, P]: the model that it received, and the one after each of its K local steps."""


class Trajectories(NamedTuple):
    """The models of a run."""

    server: Points
    """[T + 1, P]: the global model before the first of the T rounds, and after each."""
    rounds: Sequence[Sequence[ClientTrajectory]]
    """The clients of each round."""


class TrajectoryRecorder:
    """The ``RunHooks`` of a run that keeps its models in memory and writes nothing."""

    checkpoint_state = CheckpointState(writing=False)

    def __init__(self) -> None:
        self._server: list[Points] = []
        self._rounds: list[list[ClientTrajectory]] = []

    def run(self, run: Run, gradient: Gradient, sgd: Sgd) -> Trajectories:
        """Run all rounds, one client after the other.

        Args:
            run: of one rank, whose hooks are this recorder; its executor is not used.
            gradient: of the model's loss.
            sgd: of the job's local section.

        Raises:
            DivergedError, ClientError: see ``hpcfl.engine.loop.run_rounds``.
        """
        schedule = replace(run.schedule, evaluation_due=lambda round: True)
        executor = _RecordingExecutor(run.algorithm, gradient, sgd, self._rounds)
        run = replace(run, schedule=schedule, training=replace(run.training, executor=executor))
        run_rounds(run, run.algorithm.init_server(run.x0), 0)
        return Trajectories(np.stack(self._server), self._rounds)

    def begin_round(self, round: int) -> None:
        """Begin its list of clients; the pass over all clients in a warm start has none."""
        if round > 0:
            self._rounds.append([])

    def evaluate(self, round: int, x: Vector) -> Mapping[str, float]:
        """Keep the global model; there are no scores."""
        self._server.append(_copy(x))
        return {}

    def record(self, record: Record, busy: Sequence[float], x: Vector) -> None:
        """Write no log."""

    def begin_checkpoint(
        self, round: int, server: Any, extra_tensors: Mapping[str, Tensor]
    ) -> None:
        """Write no checkpoint."""

    def commit_checkpoint(self, round: int) -> None:
        """Write no checkpoint."""


class _RecordingExecutor(Sequential):
    """Adds the trajectories of the clients that it trains to the last of the ``rounds``."""

    def __init__(
        self,
        algorithm: Algorithm,
        gradient: Gradient,
        sgd: Sgd,
        rounds: list[list[ClientTrajectory]],
    ) -> None:
        self._trajectories: list[list[Points]] = []
        self._rounds = rounds
        recording = _RecordingAlgorithm(algorithm=algorithm, trajectories=self._trajectories)
        super().__init__(recording, gradient, sgd)

    def train(
        self,
        message: Any,
        tasks: Sequence[ClientTask],
        states: list[Any],
        *,
        local_models: bool = False,
    ) -> list[ClientResult]:
        """Train as ``Sequential`` does, and keep the trajectory of each task's client."""
        self._trajectories.clear()
        results = super().train(message, tasks, states, local_models=local_models)
        self._rounds[-1] += [
            ClientTrajectory(task.client_id, np.stack(points))
            for task, points in zip(tasks, self._trajectories, strict=True)
        ]
        return results


@dataclass(frozen=True, kw_only=True)
class _RecordingAlgorithm(Algorithm):
    """The hooks of another algorithm, for an executor; y is copied before and after each step."""

    algorithm: Algorithm
    trajectories: list[list[Points]]
    """Of one client after the other, in the order in which they train."""

    @property
    def step_scale(self) -> float:
        return self.algorithm.step_scale

    def init_server(self, x0: Vector) -> Any:
        return self.algorithm.init_server(x0)

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return self.algorithm.update(server, mean, cohort)

    def begin(self, message: Any, state: Any, client: Client) -> Any:
        self.trajectories.append([])
        return self.algorithm.begin(message, state, client)

    def start_point(self, y: Vector, local: Any, client: Client) -> Vector:
        self.trajectories[-1].append(_copy(y))
        return self.algorithm.start_point(y, local, client)

    def gradient_point(self, y: Vector, start: Vector, local: Any, client: Client) -> Vector:
        return self.algorithm.gradient_point(y, start, local, client)

    def direction(self, point: Vector, local: Any, grad: Grad, client: Client) -> Vector:
        return self.algorithm.direction(point, local, grad, client)

    def update_local(self, local: Any, step: Vector, client: Client) -> Any:
        return self.algorithm.update_local(local, step, client)

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        self.trajectories[-1].append(_copy(y))
        return self.algorithm.finish(y, local, message, state, client)


def _copy(y: Vector) -> Points:
    """A copy: the executor changes its vector in place."""
    copied: Points = y.detach().cpu().double().numpy().copy()
    return copied
