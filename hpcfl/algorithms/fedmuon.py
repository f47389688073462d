"""FedMuon: clients step by Muon, from the last round's momentum and along its direction.

    server  x, Mbar = 0, Delta = 0            client  nothing
    send    x, Mbar, Delta
    begin   M = Mbar
    step    d = Muon's direction, whose momentum M is updated (hpcfl/algorithms/optim/muon.py)
            y <- y - eta ((1 - alpha) d + alpha Delta)
    finish  delta = x - y, and M
    update  x <- x - eta_g mean(delta);  Mbar <- mean(M);  Delta <- mean(delta / (eta K_i))

M is of matrices alone; the moments of all other parameters are zero at the start of a round.

Liu, Shang, Zhou, Liu, Liu, Liu. FedMuon: Accelerating Federated Learning with Matrix
Orthogonalization. 2025. arXiv:2510.27403

Departures: five Newton-Schulz steps, as in the authors' code, where the paper writes an SVD.  The
weight decay is not multiplied by 1 - alpha nor matrix_lr.  Each K_i is the client's own.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Nothing
from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad
from hpcfl.algorithms.optim.muon import Muon, State
from hpcfl.types import Decay, Positive, Share, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # Mbar, the entries of matrices
    momentum: Vector  # Delta


class Local(NamedTuple):
    muon: State
    momentum: Vector  # Delta


class Upload(NamedTuple):
    delta: Vector
    m: Vector
    gradient: Vector  # delta / (eta K)


@dataclass(frozen=True, kw_only=True)
class FedMuon(Algorithm):
    """FedMuon (Liu et al., 2025)."""

    not_transmitted: ClassVar[frozenset[str]] = frozenset({"gradient"})

    alpha: Share = 0.5
    """Weight of the last round's direction."""
    beta: Decay = 0.98
    """Momentum of matrices."""
    nesterov: bool = True
    """Whether matrices move along (1 - beta) g + beta M instead of M."""
    matrix_lr: Positive = 1.0
    """Factor on the learning rate of matrices."""

    @property
    def _muon(self) -> Muon:
        return Muon(beta=self.beta, nesterov=self.nesterov, matrix_lr=self.matrix_lr)

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd("its local steps are Muon's")
        facts.require_one_rate("its Delta divides x - y by eta K")
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x0, self.layout.take(zeros_like(x0), self.layout.matrices), zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: Nothing, client: Client) -> Local:
        fresh = self._muon.init(message.x, self.layout)
        momentum = self.layout.join(fresh.momentum, self.layout.matrices, message.m)
        return Local(fresh._replace(momentum=momentum), message.momentum)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        d, after = self._muon.step(grad(point), point, local.muon, 0.0, self.layout)
        d = (1 - self.alpha) * d + self.alpha * local.momentum
        return d, Local(after, local.momentum)

    def finish(
        self, y: Vector, local: Local, message: Server, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        delta = message.x - y
        m = self.layout.take(local.muon.momentum, self.layout.matrices)
        return Upload(delta, m, delta / (client.lr * client.steps)), state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.delta, mean.m, mean.gradient)
