"""FedACG: clients start where the server's momentum leads, and are held there.

    server  x, v = 0                          client  nothing
    send    xh = x - lam v
    step    y <- y - eta (g(y) + beta (y - xh)),  y = xh before the first
    finish  delta = xh - y
    update  v <- lam v + mean(delta);  x <- x - eta_g v

Kim, Kim, Han. Communication-Efficient Federated Learning with Accelerated Client Gradient.
CVPR 2024. arXiv:2201.03172

Departures: the server's learning rate eta_g is ours (1 there).
"""

from dataclasses import dataclass

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Message, Upload
from hpcfl.algorithms.facts import Client, Cohort, Grad
from hpcfl.algorithms.fedavgm import Server
from hpcfl.types import Decay, NonNegative, Vector


@dataclass(frozen=True, kw_only=True)
class FedACG(Algorithm):
    """FedACG (Kim et al., 2024)."""

    lam: Decay = 0.85
    """Momentum factor."""
    beta: NonNegative = 0.002
    """Weight of the proximal term (beta / 2) norm(y - xh)^2."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, v=zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Message:
        return Message(server.x - self.lam * server.v)

    def direction(
        self, point: Vector, local: Message, grad: Grad, client: Client
    ) -> tuple[Vector, Message]:
        return grad(point) + self.beta * (point - local.x), local

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        v = self.lam * server.v + mean.delta
        return Server(server.x - self.server_lr * v, v)
