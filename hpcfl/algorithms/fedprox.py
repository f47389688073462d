"""FedProx: a proximal term pulls clients back to the global model.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta (g(y) + mu (y - x))
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks.
MLSys 2020, algorithm 2. arXiv:1812.06127

Departures: local work is the job's, not solved to a gamma-inexact minimum; clients are weighted
by the job's weights instead of sampled by them.
"""

from dataclasses import dataclass

from hpcfl.algorithms.base import Message
from hpcfl.algorithms.facts import Client, Grad
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import NonNegative, Vector


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedProx (Li et al., 2020)."""

    mu: NonNegative = 0.1
    """Weight of the proximal term (mu / 2) norm(y - x)^2."""

    def direction(
        self, point: Vector, local: Message, grad: Grad, client: Client
    ) -> tuple[Vector, Message]:
        return grad(point) + self.mu * (point - local.x), local
