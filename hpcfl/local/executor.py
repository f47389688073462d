"""What all executors have in common: they train the clients of a rank, K at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client
from hpcfl.algorithms.optim import Descent, Sgd
from hpcfl.clients.draws import drawn
from hpcfl.clients.error_context import client_errors
from hpcfl.clients.task import ClientResult, ClientTask
from hpcfl.local.gradient import Gradient
from hpcfl.local.joined import joined, split
from hpcfl.local.step import Carry
from hpcfl.types import Vector

_STEP_HOOKS = ("points", "direction", "step_scale")
MAX_BLOCK_SIZE = 32  # clients in a block where the job gives no block_size


class Executor(ABC):
    """Trains the clients of a rank, in the order of their tasks.

    Args:
        algorithm: of the job.
        gradient: of the model.
        descent: the optimiser of the local steps.
        size: K, the clients that are trained at once.
        shared: for each field of a client's state, whether it is the model that the client
            received, where hooks are given a copy of that; else empty.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        gradient: Gradient,
        descent: Descent,
        size: int = 1,
        shared: Sequence[bool] = (),
    ) -> None:
        self.algorithm, self.gradient, self.descent = algorithm, gradient, descent
        self._size, self._shared = size, shared
        default = (getattr(type(algorithm), h) is getattr(Algorithm, h) for h in _STEP_HOOKS)
        plain = gradient.clip is None and gradient.statistics is None
        self.plain_sgd = plain and descent.optimizer == Sgd() and all(default)
        """Whether a local step is y <- y - lr (gradient + weight_decay y), and nothing else."""

    def full_gradients(
        self, points: Sequence[Vector], tasks: Iterable[ClientTask]
    ) -> list[tuple[Vector, ...]]:
        """Each client's gradients at these points of its mean loss over all its examples.

        Client after client, whatever K: these batches are large enough for one.

        Raises:
            ClientError: a client's data or the model raised.
        """
        gradients = []
        for task in tasks:
            with client_errors(task, "full gradient"):
                gradients.append(self.gradient.full(points, task.full_batches))
        return gradients

    def train(
        self,
        message: Any,
        tasks: Sequence[ClientTask],
        states: Sequence[Any],
        *,
        local_models: bool = False,
    ) -> list[ClientResult]:
        """Train the clients of all tasks, from the same message.

        Args:
            message: from the server to the clients of the cohort.
            tasks: of the clients that this rank trains.
            states: of these clients.
            local_models: whether to return their last local models too.

        Raises:
            ClientError: a client's data, the model or the algorithm raised.
        """
        results: list[ClientResult] = []
        for k in range(0, len(tasks), self._size):
            some = slice(k, k + self._size)
            # No name stays for a result: it holds its client's last local model.
            results += [
                result._replace(
                    state=self._with_received(result.state, message.x),
                    local_model=result.local_model if local_models else None,
                )
                for result in self._train(message, tasks[some], states[some])
            ]
        return results

    @abstractmethod
    def _train(
        self, message: Any, tasks: Sequence[ClientTask], states: Sequence[Any]
    ) -> list[ClientResult]:
        """Train at most K clients; the results have their local models."""

    def _begin(self, message: Any, state: Any, client: Client) -> Carry:
        """What a client carries into its first step."""
        (message, sent, _), (state, own, kept) = split(message), split(state)
        statistics = sent if own is None else own
        local = self.algorithm.begin(message, state, client)
        y = self.algorithm.first_point(message, state, client)
        moved = () if statistics is None else (statistics,)
        return Carry(y, local, self.descent.init(y) if kept is None else kept, moved)

    def _draws(self, message: Any, task: ClientTask) -> dict[str, Vector]:
        """The random vectors that the algorithm asks for."""
        wanted = self.algorithm.client_draws
        return drawn(wanted, message.x, task.seed, task.round, task.client_id)

    def _finish(self, message: Any, state: Any, client: Client, carry: Carry) -> tuple[Any, Any]:
        """A client's upload and its new state."""
        y, local, optimizer, statistics = carry
        message, (state, own, kept) = split(message).tree, split(state)
        upload, after = self.algorithm.finish(y, local, message, state, client)
        # Back to where they are from.
        (moved,) = statistics or (None,)
        if own is None:
            upload, moved = joined(upload, moved), None
        return upload, joined(after, moved, None if kept is None else optimizer)

    def _with_received(self, state: Any, x: Vector) -> Any:
        """The state of a client, where the shared fields are the received model itself."""
        if not any(self._shared):
            return state
        fields = zip(self._shared, state, strict=True)
        return type(state)(*(x if same else leaf for same, leaf in fields))


class ClientByClient(Executor):
    """Calls the hooks before and after the local steps for one client after the other."""

    def _train(
        self, message: Any, tasks: Sequence[ClientTask], states: Sequence[Any]
    ) -> list[ClientResult]:
        carries = []
        for task, state in zip(tasks, states, strict=True):
            with client_errors(task, "begin"):
                carries.append(self._begin(message, state, task.client))
        results = []
        carries, losses = self._take_steps(tasks, carries)
        for task, state, carry, loss in zip(tasks, states, carries, losses, strict=True):
            with client_errors(task, "finish"):
                client = task.finishing._replace(draws=self._draws(message, task))
                upload, after = self._finish(message, state, client, carry)
            results.append(ClientResult(upload, after, loss, carry.y))
        return results

    @abstractmethod
    def _take_steps(
        self, tasks: Sequence[ClientTask], carries: list[Carry]
    ) -> tuple[list[Carry], Sequence[Tensor]]:
        """All local steps of at most K clients: what they carry, and the means of their losses."""
