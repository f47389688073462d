"""Train one client after the other, by plain autograd: the reference for other executors."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hpcfl.algorithms.base import Algorithm
from hpcfl.local.draws import drawn
from hpcfl.local.error_context import client_errors
from hpcfl.local.grad import BatchGradient
from hpcfl.local.gradient import Gradient
from hpcfl.local.step import local_step
from hpcfl.local.task import ClientResult, ClientTask, number
from hpcfl.optim import Descent, Sgd
from hpcfl.types import Vector

_STEP_HOOKS = ("points", "direction", "step_scale")


class Sequential:
    """Trains the clients of a rank, in the order of their tasks."""

    def __init__(self, algorithm: Algorithm, gradient: Gradient, descent: Descent) -> None:
        self.algorithm, self.gradient, self.descent = algorithm, gradient, descent
        default = (getattr(type(algorithm), h) is getattr(Algorithm, h) for h in _STEP_HOOKS)
        plain = descent.optimizer == Sgd()
        self._plain_sgd = gradient.clip is None and plain and all(default)

    def full_gradients(
        self, points: Sequence[Vector], tasks: Iterable[ClientTask]
    ) -> list[tuple[Vector, ...]]:
        """Each client's gradients at these points of its mean loss over all its examples.

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
        states: list[Any],
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
        return [
            self._train_one(message, task, state, local_models)
            for task, state in zip(tasks, states, strict=True)
        ]

    def begin(self, message: Any, task: ClientTask, state: Any) -> tuple[Vector, Any, Any]:
        """A client's first point, its local quantities and the state of its optimiser."""
        with client_errors(task, "begin"):
            local = self.algorithm.begin(message, state, task.client)
            first = self.algorithm.first_point(message, state, task.client)
            return first, local, self.descent.init(first)

    def finish(
        self, message: Any, task: ClientTask, state: Any, y: Vector, local: Any
    ) -> tuple[Any, Any]:
        """A client's upload and new state."""
        with client_errors(task, "finish"):
            wanted = self.algorithm.client_draws
            draws = drawn(wanted, y, task.seed, task.round, task.client_id)
            client = task.client._replace(draws=draws)
            upload, after = self.algorithm.finish(y, local, message, state, client)
        return upload, after

    def _train_one(
        self, message: Any, task: ClientTask, state: Any, local_models: bool
    ) -> ClientResult:
        algorithm, gradient, client = self.algorithm, self.gradient, task.client
        first, local, optimizer = self.begin(message, task, state)
        y = first.clone()
        loss = torch.zeros((), dtype=torch.float64, device=y.device)
        lr, steps = float(client.lr), int(client.steps)
        with client_errors(task, "step") as at:
            for k in range(steps):
                at.step = k
                batch, seed = next(task.batches), task.dropout_seed + k
                if self._plain_sgd:  # same bits as below; the gradient is not joined to a vector
                    loss += gradient.descend(y, batch, seed, lr, self.descent.decay)
                    continue
                grad = BatchGradient(gradient, batch, seed)
                now = client._replace(step=number(k))
                step = local_step(algorithm, self.descent, y, local, optimizer, grad, now)
                if grad.loss is not None:
                    loss += grad.loss
                # In place, which keeps the parameters views of y; unless a hook or the optimiser
                # returned something new, in which it may have kept the point, and so y itself.
                kept = step.local is not local or step.state is not optimizer
                local, optimizer = step.local, step.state
                if isinstance(step.scale, torch.Tensor):
                    y = step.start - step.scale * client.lr * step.along
                elif kept:
                    y = torch.add(step.start, step.along, alpha=-step.scale * lr)
                else:
                    torch.add(step.start, step.along, alpha=-step.scale * lr, out=y)
        upload, after = self.finish(message, task, state, y, local)
        return ClientResult(upload, after, loss / steps, y if local_models else y.new_empty(0))
