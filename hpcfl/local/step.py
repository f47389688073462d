"""One local step of a client: the hooks of its algorithm, the job's optimiser, the last line."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hpcfl.algorithms.facts import Client, Grad
from hpcfl.algorithms.optim import Descent
from hpcfl.local.grad import StepGrad
from hpcfl.types import Vector


class StepHooks(Protocol):
    """The hooks of a local step, which an ``Algorithm`` has."""

    def points(self, y: Vector, local: Any, client: Client) -> tuple[Vector, Vector]:
        """See ``Algorithm``, as of all hooks here."""
        ...

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        """Along which the client goes downhill, and its new local quantities."""
        ...

    def step_scale(self, y: Vector, local: Any, client: Client) -> float | Tensor:
        """The factor on the learning rate."""
        ...


class Carry(NamedTuple):
    """What a client carries from one local step to the next."""

    y: Vector  # [P], its model
    local: Any  # the quantities of the algorithm
    optimizer: Any  # the state of the optimiser
    statistics: tuple[Vector, ...] = ()  # the model's running ones [Q], if steps move any


def local_step(
    hooks: StepHooks,
    descent: Descent,
    carry: Carry,
    grad: StepGrad,
    client: Client,
    lr: float | None = None,
) -> Carry:
    """Take one local step.

    Args:
        hooks: of the algorithm.
        descent: the job's optimiser.
        carry: of the client; its ``y`` may change in place where ``lr`` is given.
        grad: the gradient of the step's batch at a point.
        client: the client.
        lr: its learning rate as a number; None inside ``torch.func.vmap`` and CUDA graphs, where
            ``client.lr`` is a tensor of many clients, and nothing changes in place.
    """
    y, local, optimizer, _ = carry
    start, point = hooks.points(y, local, client)
    d, local = hooks.direction(point, local, grad, client)
    along, optimizer = descent.step(d, point, optimizer)
    scale = hooks.step_scale(y, local, client)
    if lr is None or isinstance(scale, Tensor):
        y = start - scale * client.lr * along
    else:
        # In place, which keeps the model's parameters views of y; unless a hook or the optimiser
        # returned something new, in which it may have kept the point, and so y itself.
        new = local is not carry.local or optimizer is not carry.optimizer
        y = torch.add(start, along, alpha=-scale * lr, out=None if new else y)
    return Carry(y, local, optimizer, grad.statistics)
