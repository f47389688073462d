"""Server-only: every client sends one large-batch gradient at x; only the server steps.

    server  x, m = 0, v = 0, x' = x           client  nothing
    send    x, and x' for mvr
    step    s <- s + g(x; b), s = 0 before; K steps of batches of B make one batch of K B
            s <- s + g(x; b) - beta g(x'; b)                                      (mvr)
    finish  G = s / K
    update  x <- x - eta_g eta mean(G)                                            (sgd)
            m <- beta m + mean(G);  x <- x - eta_g eta m                          (momentum)
            Adam's m and v of mean(G), bias-corrected;  x <- x - eta_g eta m / (sqrt(v) + tau)
            as momentum, but m = mean(G) / (1 - beta) in the first round;  x' <- x         (mvr)

With c, c' the means of the clients' gradients at x and x', mvr is m <- c + beta (m - c'), and
m = c in the first round, where x' is x.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017 (FedSGD). arXiv:1602.05629; Kingma, Ba. Adam. ICLR 2015,
algorithm 1. arXiv:1412.6980; Cutkosky, Orabona. Momentum-Based Variance Reduction in Non-Convex
SGD. NeurIPS 2019. arXiv:1905.10018 (their a is 1 - beta)

Departures: the server steps by eta_g eta, so the schedule of the local learning rate is the
server's.  Weight decay is part of G.  A last partial batch weighs as much as a whole one.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from torch import ones_like, where, zeros_like

from hpcfl.algorithms.base import Algorithm, Nothing
from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad
from hpcfl.types import Decay, Positive, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # momentum, or Adam's first moment; [0] for sgd
    v: Vector  # Adam's second moment; [0] for the others
    # For mvr x', the model before the last round, and 1 after the first round, else 0.
    past: tuple[Vector, ...]


class Message(NamedTuple):
    x: Vector
    past: tuple[Vector, ...]  # x' for mvr


class Local(NamedTuple):
    x: Vector
    past: tuple[Vector, ...]
    total: Vector  # sum of the gradients so far


class Upload(NamedTuple):
    gradient: Vector


@dataclass(frozen=True, kw_only=True)
class ServerOnly(Algorithm):
    """The server's optimiser over large-batch gradients (FedSGD)."""

    optimizer: Literal["sgd", "momentum", "adam", "mvr"] = "sgd"
    """The optimiser of the server."""
    beta: Decay = 0.9
    """Momentum factor of momentum and mvr."""
    b1: Decay = 0.9
    """Decay of Adam's first moment."""
    b2: Decay = 0.999
    """Decay of Adam's second moment."""
    tau: Positive = 1e-8
    """Added to sqrt(v) of Adam."""

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd("its clients take no steps, the server does: algorithm.optimizer")
        facts.require_one_rate("its server takes the steps, by one eta a round")
        return self

    def init_server(self, x0: Vector) -> Server:
        m = zeros_like(x0) if self.optimizer != "sgd" else x0[:0]
        v = zeros_like(x0) if self.optimizer == "adam" else x0[:0]
        return Server(x0, m, v, (x0, x0.new_zeros(())) if self.optimizer == "mvr" else ())

    def broadcast(self, server: Server, cohort: Cohort) -> Message:
        return Message(server.x, server.past[:1])

    def begin(self, message: Message, state: Nothing, client: Client) -> Local:
        return Local(message.x, message.past, zeros_like(message.x))

    def points(self, y: Vector, local: Local, client: Client) -> tuple[Vector, Vector]:
        if self.optimizer == "mvr":  # where the weight decay is that of x less beta that of x'
            return y, local.x - self.beta * local.past[0]
        return y, local.x

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        gradient = grad(local.x)
        if self.optimizer == "mvr":
            gradient = gradient - self.beta * grad(local.past[0])
        decay = self.facts.weight_decay
        decayed = gradient.add(point, alpha=decay) if decay else gradient
        return gradient, Local(local.x, local.past, local.total + decayed)

    def finish(
        self, y: Vector, local: Local, message: Message, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        return Upload(local.total / client.steps), state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        x, m, v, past = server
        if self.optimizer == "sgd":
            step = mean.gradient
        elif self.optimizer == "momentum":
            step = m = self.beta * m + mean.gradient
        elif self.optimizer == "mvr":
            started = past[1]
            # In the first round the clients' gradients at x' are those at x.
            first = mean.gradient / (1 - self.beta)
            step = m = where(started > 0, self.beta * m + mean.gradient, first)
            past = x, ones_like(started)
        else:
            m = self.b1 * m + (1 - self.b1) * mean.gradient
            v = self.b2 * v + (1 - self.b2) * mean.gradient * mean.gradient
            count = cohort.round + 1
            first, second = m / (1 - self.b1**count), v / (1 - self.b2**count)
            step = first / (second.sqrt() + self.tau)
        after = x - self.server_lr * cohort.lr * step
        return Server(after, m, v, past)
