"""FedLADA: clients step by Adam's scaling of the last round, mixed with its direction.

    server  x, vbar = 0, Delta = 0            client  nothing
    send    x, vbar, Delta
    begin   m = 0, v = vbar
    step    m <- b1 m + (1 - b1) g(y);  v <- b2 v + (1 - b2) g(y)^2
            y <- y - eta ((1 - alpha) m / (sqrt(v) + eps) + alpha Delta)
    finish  delta = x - y, and v
    update  x <- x - eta_g mean(delta);  vbar <- mean(v);  Delta <- mean(delta / (eta K_i))

Sun, Shen, Sun, Ding, Tao. Efficient Federated Learning via Local Adaptive Amended Optimizer with
Linear Speedup. IEEE Transactions on Pattern Analysis and Machine Intelligence 2023.
arXiv:2308.00522

Departures: this is the form of another group's public code, without correction of the moments for
their start.  Weight decay is added to the step, as everywhere here, and is not in m and v.  Each
K_i is the client's own.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Nothing
from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad
from hpcfl.algorithms.fedadamw import Local, Server, Upload
from hpcfl.types import Decay, NonNegative, Share, Vector


@dataclass(frozen=True, kw_only=True)
class FedLADA(Algorithm):
    """FedLADA (Sun et al., 2023)."""

    not_transmitted: ClassVar[frozenset[str]] = frozenset({"gradient"})

    alpha: Share = 0.9
    """Weight of the last round's direction."""
    b1: Decay = 0.9
    """Decay of the first moment."""
    b2: Decay = 0.999
    """Decay of the second moment."""
    eps: NonNegative = 1e-8
    """Added to the root of the second moment."""

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd("its local steps are Adam's")
        facts.require_one_rate("its clients divide x - y by eta K")
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x0, zeros_like(x0), zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: Nothing, client: Client) -> Local:
        return Local(zeros_like(message.x), message.v, message.momentum)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        g = grad(point)
        m = self.b1 * local.m + (1 - self.b1) * g
        v = self.b2 * local.v + (1 - self.b2) * g * g
        d = (1 - self.alpha) * m / (v.sqrt() + self.eps) + self.alpha * local.momentum
        return d, Local(m, v, local.momentum)

    def finish(
        self, y: Vector, local: Local, message: Server, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        delta = message.x - y
        return Upload(delta, local.v, delta / (client.lr * client.steps)), state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.delta, mean.v, mean.gradient)
