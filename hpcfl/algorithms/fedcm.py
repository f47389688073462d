"""FedCM: every local step mixes its gradient with the last round's.

    server  x, Delta = 0                      client  nothing
    send    x, Delta
    step    y <- y - eta (alpha g(y) + (1 - alpha) Delta)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)
            Delta <- mean(delta / (eta K_i))              (norm: server)

With ``norm: client`` the server sends mean(delta) as it is, and each client divides it by its own
eta K_i of the current round.

Xu, Wang, Wang, Yao. FedCM: Federated Learning with Client-level Momentum. 2021, algorithm 2.
arXiv:2106.10874

Departures: the paper divides by one K for all; here each K_i is the client's own.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Nothing, Upload
from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad
from hpcfl.types import Fraction, Vector


class Server(NamedTuple):
    x: Vector
    momentum: Vector  # Delta, a gradient; for norm client the undivided mean(delta)


class Local(NamedTuple):
    momentum: Vector  # Delta


class Scaled(NamedTuple):
    """The upload for norm server."""

    delta: Vector
    gradient: Vector  # delta / (eta K)


@dataclass(frozen=True, kw_only=True)
class FedCM(Algorithm):
    """FedCM (Xu et al., 2021)."""

    alpha: Fraction = 0.1
    """Weight of the client's own gradient."""
    norm: Literal["server", "client"] = "server"
    """The division by eta K: at the server, by the last round's; or at each client, by its own."""

    @property
    def not_transmitted(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"gradient"} if self.norm == "server" else ())

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd(
            "its Delta divides x - y by eta K, as K plain steps are long, and is a momentum already"
        )
        facts.require_one_rate("its Delta divides x - y by eta K")
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, momentum=zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: Nothing, client: Client) -> Local:
        if self.norm == "server":
            return Local(message.momentum)
        return Local(message.momentum / (client.lr * client.steps))

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        gradient = self.gradient(point, local, grad)
        return self.alpha * gradient + (1 - self.alpha) * local.momentum, local

    def gradient(self, point: Vector, local: Local, grad: Grad) -> Vector:
        """The gradient of a step; methods over this one take it elsewhere."""
        return grad(point)

    def finish(
        self, y: Vector, local: Local, message: Server, state: Nothing, client: Client
    ) -> tuple[Scaled | Upload, Nothing]:
        delta = message.x - y
        if self.norm == "server":
            return Scaled(delta, delta / (client.lr * client.steps)), state
        return Upload(delta), state

    def update(self, server: Server, mean: Any, cohort: Cohort) -> Server:
        momentum = mean.gradient if self.norm == "server" else mean.delta
        return Server(server.x - self.server_lr * mean.delta, momentum)
