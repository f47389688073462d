"""The optimiser of local steps: SGD with weight decay and momentum, as torch.optim.SGD has them.

    d    = the algorithm's direction, of gradients that are clipped already
    d    <- d + weight_decay point                    (coupled: the decay enters the velocity)
    v    <- momentum v + d,  v = 0 when a client's local training begins
    y    <- start - eta v                             or start - eta (d + momentum v)  (nesterov)

Sutskever, Martens, Dahl, Hinton. On the importance of initialization and momentum in deep
learning. ICML 2013, in the form of deep-learning libraries: dampening 0, and the learning rate
outside the velocity.
"""

from dataclasses import dataclass

from torch import Tensor, zeros_like

from hpcfl.types import Vector


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """SGD with momentum; pure functions, for one client or under ``torch.func.vmap``."""

    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False

    def velocity(self, y: Tensor) -> Tensor:
        """The velocity before the first local steps from ``y`` [..., P]; [..., 0] if there is none.

        Nothing of it is kept between rounds: a client would otherwise have a state, and go on along
        a direction that was taken from an older model.
        """
        return zeros_like(y) if self.momentum else y[..., :0]

    def decayed(self, direction: Vector, point: Vector) -> Vector:
        """The direction with the weight decay at ``point``."""
        return direction.add(point, alpha=self.weight_decay) if self.weight_decay else direction

    def step(self, d: Vector, velocity: Vector) -> tuple[Vector, Vector]:
        """The vector along which y moves downhill, and the new velocity.

        Args:
            d: the direction with its weight decay.
            velocity: after the step before.
        """
        if not self.momentum:
            return d, velocity
        velocity = self.momentum * velocity + d
        return (d + self.momentum * velocity if self.nesterov else velocity), velocity
