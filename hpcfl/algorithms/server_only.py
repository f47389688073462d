"""Server-only: every client sends one large-batch gradient at x; only the server steps.

    server  x, m = 0, v = 0                   client  nothing
    send    x
    step    s <- s + g(x; b), s = 0 before; K steps of batches of B make one batch of K B
    finish  G = s / K
    update  x <- x - eta_g eta mean(G)                                            (sgd)
            m <- beta m + mean(G);  x <- x - eta_g eta m                          (momentum)
            Adam's m and v of mean(G), bias-corrected;  x <- x - eta_g eta m / (sqrt(v) + tau)

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017 (FedSGD). arXiv:1602.05629; Kingma, Ba. Adam. ICLR 2015,
algorithm 1. arXiv:1412.6980

Departures: the server steps by eta_g eta, so the schedule of the local learning rate is the
server's.  Weight decay is part of G.  A last partial batch weighs as much as a whole one.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Client, Cohort, Message, Nothing
from hpcfl.types import Decay, Positive, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # momentum, or Adam's first moment; [0] for sgd
    v: Vector  # Adam's second moment; [0] for the others


class Local(NamedTuple):
    x: Vector
    total: Vector  # sum of the gradients so far


class Upload(NamedTuple):
    gradient: Vector


@dataclass(frozen=True, kw_only=True)
class ServerOnly(Algorithm):
    """The server's optimiser over large-batch gradients (FedSGD)."""

    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    """The optimiser of the server."""
    beta: Decay = 0.9
    """Momentum factor of momentum."""
    b1: Decay = 0.9
    """Decay of Adam's first moment."""
    b2: Decay = 0.999
    """Decay of Adam's second moment."""
    tau: Positive = 1e-8
    """Added to sqrt(v) of Adam."""

    def init_server(self, x0: Vector) -> Server:
        m = zeros_like(x0) if self.optimizer != "sgd" else x0[:0]
        return Server(x0, m, zeros_like(x0) if self.optimizer == "adam" else x0[:0])

    def begin(self, message: Message, state: Nothing, client: Client) -> Local:
        return Local(message.x, zeros_like(message.x))

    def gradient_point(self, y: Vector, start: Vector, local: Local, client: Client) -> Vector:
        return local.x

    def update_local(self, local: Local, step: Vector, client: Client) -> Local:
        return Local(local.x, local.total + step)

    def finish(
        self, y: Vector, local: Local, message: Message, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        return Upload(local.total / client.steps), state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        x, m, v = server
        if self.optimizer == "sgd":
            step = mean.gradient
        elif self.optimizer == "momentum":
            step = m = self.beta * m + mean.gradient
        else:
            m = self.b1 * m + (1 - self.b1) * mean.gradient
            v = self.b2 * v + (1 - self.b2) * mean.gradient * mean.gradient
            count = cohort.round + 1
            first, second = m / (1 - self.b1**count), v / (1 - self.b2**count)
            step = first / (second.sqrt() + self.tau)
        return Server(x - self.server_lr * cohort.lr * step, m, v)
