"""FedADC: the server's momentum is spread over the clients' local steps.

    server  x, m = 0                          client  nothing
    send    x, m
    step    y <- y - eta (g(y) + beta_local m / K)
            y <- y - eta beta_local m / K, then y <- y - eta g(y)    (nesterov)
    finish  delta = x - y
    update  m <- mean(delta) / eta - (beta_local - beta) m;  x <- x - eta_g eta m

Ozfatura, Ozfatura, Gunduz. FedADC: Accelerated Federated Learning with Drift Control. ISIT 2021,
algorithms 2 and 3. arXiv:2012.09102

Departures: none.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Nothing, Upload
from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad
from hpcfl.types import Decay, NonNegative, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # momentum, a sum of gradients


class Local(NamedTuple):
    momentum: Vector  # beta_local m / K


@dataclass(frozen=True, kw_only=True)
class FedADC(Algorithm):
    """FedADC (Ozfatura et al., 2021)."""

    beta: Decay = 0.9
    """Momentum factor of the server."""
    beta_local: NonNegative = 1.0
    """Factor of the momentum in all local steps of a round together."""
    nesterov: bool = False
    """Take the gradient after the step along the momentum."""

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd("its local steps have the server's momentum, algorithm.beta")
        facts.require_one_rate("its server divides x - y by eta")
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, m=zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: Nothing, client: Client) -> Local:
        return Local(self.beta_local / client.steps * message.m)

    def points(self, y: Vector, local: Local, client: Client) -> tuple[Vector, Vector]:
        point = y - client.lr * local.momentum if self.nesterov else y
        return point, point

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        return (grad(point) if self.nesterov else grad(point) + local.momentum), local

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        m = mean.delta / cohort.lr - (self.beta_local - self.beta) * server.m
        return Server(server.x - self.server_lr * cohort.lr * m, m)
