"""One local step of a client: the hooks of its algorithm, and the job's optimiser."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from hpcfl.algorithms.facts import Client, Grad
from hpcfl.optim import Descent
from hpcfl.types import Vector


class StepHooks(Protocol):
    """The hooks of a local step: an ``Algorithm``, or one whose rules are checked."""

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


class LocalStep(NamedTuple):
    """One local step but its last line, y = start - scale lr along, which callers compute."""

    start: Vector
    along: Vector
    scale: float | Tensor  # a number, or a vector [P]
    local: Any  # what the client keeps between the steps of a round
    state: Any  # of the optimiser


def local_step(
    hooks: StepHooks,
    descent: Descent,
    y: Vector,
    local: Any,
    state: Any,
    grad: Grad,
    client: Client,
) -> LocalStep:
    """Take a local step but its last line; pure, so that ``torch.func.vmap`` can compute it too.

    Args:
        hooks: of the algorithm.
        descent: the job's optimiser.
        y: [P], the client's model.
        local: what it keeps between the steps of a round.
        state: of the optimiser, after the step before.
        grad: the gradient of the step's batch at a point.
        client: the client.
    """
    start, point = hooks.points(y, local, client)
    d, local = hooks.direction(point, local, grad, client)
    along, state = descent.step(d, point, state)
    return LocalStep(start, along, hooks.step_scale(y, local, client), local, state)
