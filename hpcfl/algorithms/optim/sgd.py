"""SGD with weight decay and momentum, as torch.optim.SGD has them.

    d <- d + weight_decay point                       (coupled: the decay enters the velocity)
    v <- momentum v + d,  v = 0 at first
    along = v, or d + momentum v                      (nesterov)

Sutskever, Martens, Dahl, Hinton. On the importance of initialization and momentum in deep
learning. ICML 2013, in the form of deep-learning libraries: dampening 0, and the learning rate
outside the velocity.
"""

from dataclasses import dataclass

from torch import zeros_like

from hpcfl.algorithms.layout import Layout
from hpcfl.algorithms.optim.base import Optimizer, coupled
from hpcfl.types import Decay, Vector


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
    """SGD; its numbers are ``local.momentum`` and ``local.nesterov`` of a job."""

    momentum: Decay = 0.0
    nesterov: bool = False

    def init(self, y: Vector, layout: Layout) -> Vector:
        return zeros_like(y) if self.momentum else y[..., :0]

    def step(
        self, d: Vector, point: Vector, state: Vector, decay: float, layout: Layout
    ) -> tuple[Vector, Vector]:
        d = coupled(d, point, decay)
        if not self.momentum:
            return d, state
        velocity = self.momentum * state + d
        return (d + self.momentum * velocity if self.nesterov else velocity), velocity
