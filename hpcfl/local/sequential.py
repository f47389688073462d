"""Train one client after the other, by plain autograd: the reference for other executors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcfl.clients.error_context import client_errors
from hpcfl.clients.task import ClientResult, ClientTask
from hpcfl.local.executor import ClientByClient
from hpcfl.local.grad import StepGrad
from hpcfl.local.step import Carry, local_step


class Sequential(ClientByClient):
    """Trains one client at a time; see ``Executor``."""

    def train(
        self, message: Any, tasks: Sequence[ClientTask], states: Sequence[Any], **how: bool
    ) -> list[ClientResult]:
        """See ``Executor.train``; the last client's model is let go at the end."""
        results = super().train(message, tasks, states, **how)
        self.gradient.view(message.x)
        return results

    def _take_steps(
        self, tasks: Sequence[ClientTask], carries: list[Carry]
    ) -> tuple[list[Carry], Sequence[Tensor]]:
        ((task,), (carry,)) = tasks, carries
        first = carry.y.contiguous()
        self.gradient.view(first)  # which lets go of the last client's model: y has its memory
        carry = carry._replace(y=first.clone())
        loss = torch.zeros((), dtype=torch.float64, device=carry.y.device)
        with client_errors(task, "step") as at:
            for k in range(task.steps):
                at.step = k
                batch, seed = next(task.batches), task.dropout_seed + k
                lr = task.lr if task.lr_of_step is None else task.lr_of_step(k)
                if self.plain_sgd:  # same bits as below; the gradient is not joined to a vector
                    loss += self.gradient.descend(carry.y, batch, seed, lr, self.descent.decay)
                    continue
                grad = StepGrad(self.gradient.on(batch, seed), carry.statistics)
                now = task.client_in(k)
                carry = local_step(self.algorithm, self.descent, carry, grad, now, lr)
                if grad.loss is not None:
                    loss += grad.loss
        return [carry], [loss / task.steps]
