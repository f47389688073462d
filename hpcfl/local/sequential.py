"""Train one client after the other, by plain autograd: the reference for other executors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hpcfl.clients.error_context import client_errors
from hpcfl.clients.task import ClientResult, ClientTask, number
from hpcfl.local.executor import ClientByClient
from hpcfl.local.grad import StepGrad
from hpcfl.local.step import Carry, local_step
from hpcfl.types import Vector


class Sequential(ClientByClient):
    """Trains one client at a time; see ``Executor``."""

    _y: Vector | None = None  # the memory of the last client's model, if it is free

    def train(
        self,
        message: Any,
        tasks: Sequence[ClientTask],
        states: Sequence[Any],
        *,
        local_models: bool = False,
    ) -> list[ClientResult]:
        """See ``Executor.train``; the last client's model is let go at the end."""
        results = super().train(message, tasks, states, local_models=local_models)
        self._y = None
        self.gradient.view(message.x)
        return results

    def _train(
        self,
        message: Any,
        tasks: Sequence[ClientTask],
        states: Sequence[Any],
        *,
        local_models: bool,
    ) -> list[ClientResult]:
        results = super()._train(message, tasks, states, local_models=local_models)
        if self._y is not None and _has_part_of(results, self._y):
            self._y = None
        return results

    def _first_y(self, first: Vector) -> Vector:
        """A copy of a client's first point, in the memory of the last client's model if it can."""
        if self._y is None or (self._y.shape, self._y.dtype) != (first.shape, first.dtype):
            self._y = torch.empty_like(first)
        return self._y.copy_(first)

    def _take_steps(
        self, tasks: Sequence[ClientTask], carries: list[Carry]
    ) -> tuple[list[Carry], Sequence[Tensor]]:
        ((task,), (carry,)) = tasks, carries
        client, lr = task.client, task.lr
        carry = carry._replace(y=self._first_y(carry.y))
        loss = torch.zeros((), dtype=torch.float64, device=carry.y.device)
        with client_errors(task, "step") as at:
            for k in range(task.steps):
                at.step = k
                batch, seed = next(task.batches), task.dropout_seed + k
                if self.plain_sgd:  # same bits as below; the gradient is not joined to a vector
                    loss += self.gradient.descend(carry.y, batch, seed, lr, self.descent.decay)
                    continue
                grad = StepGrad(self.gradient.on(batch, seed), carry.statistics)
                now = client._replace(step=number(k)) if k else client
                carry = local_step(self.algorithm, self.descent, carry, grad, now, lr)
                if grad.loss is not None:
                    loss += grad.loss
        return [carry], [loss / task.steps]


def _has_part_of(tree: Any, vector: Vector) -> bool:
    """Whether a tensor of the tree is the vector, or a view of its memory."""
    own = vector.untyped_storage().data_ptr()
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return any(leaf.untyped_storage().data_ptr() == own for leaf in leaves)
