"""Mime: clients correct their gradients by the cohort's and apply the server's fixed momentum.

    server  x, m = 0                          client  nothing
    first   grad f_i(x) of every client of the cohort;  c = their plain mean
    send    x, c, and m where beta > 0
    step    G = g(y; b) - g(x; b) + c
            y <- y - eta (G + beta m)                     (heavy)
            y <- y - eta ((1 - beta) G + beta m)          (ema)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)
            m <- beta m + c                               (heavy)
            m <- beta m + (1 - beta) c                    (ema)

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, algorithm 1. arXiv:2008.03606

Departures: the paper's momentum is the form ema; heavy is printed in its authors' slides and in
the FedHBM paper.  ema at a rate of eta is heavy at (1 - beta) eta.  c is over each client's whole
data.  The server's learning rate eta_g is ours (1 there).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, FullGradientScope, Grad
from hpcfl.types import Decay, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # momentum of the cohorts' gradients; [0] where beta is 0


class Message(NamedTuple):
    x: Vector
    c: Vector  # the mean gradient of the cohort
    m: Vector


class MimeFramework(Algorithm):
    """Mime over any base optimiser; the server holds x and the optimiser's statistics."""

    @property
    def full_gradient(self) -> FullGradientScope:
        """Their mean, which the message has."""
        return "server"

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd(
            "the server's optimiser, and any momentum of it, stays fixed while its clients train"
        )
        return self

    @abstractmethod
    def base_direction(self, gradient: Vector, server: Any, client: Client) -> Vector:
        """The base optimiser's step along a gradient, with the server's statistics (paper's U)."""

    @abstractmethod
    def advance(self, server: Any, delta: Vector, c: Vector) -> Any:
        """The server after a step along ``delta``, its statistics updated by ``c`` (paper's V)."""

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        corrected = grad(point) - grad(local.x) + local.c
        return self.base_direction(corrected, local, client), local

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return self.advance(server, mean.delta, cohort.grads[0])


@dataclass(frozen=True, kw_only=True)
class Mime(MimeFramework):
    """Mime (Karimireddy et al., 2021) over SGD."""

    beta: Decay = 0.0
    """Momentum factor."""
    form: Literal["heavy", "ema"] = "heavy"
    """Momentum as a heavy ball, or as an exponential moving average."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, m=zeros_like(x0) if self.beta else x0[:0])

    def broadcast(self, server: Server, cohort: Cohort) -> Any:
        return Message(server.x, cohort.grads[0], server.m)

    def blend(self, gradient: Vector, m: Vector) -> Vector:
        """A gradient mixed with the momentum: a step's direction, and the next momentum."""
        if not self.beta:
            return gradient
        return (gradient if self.form == "heavy" else (1 - self.beta) * gradient) + self.beta * m

    def base_direction(self, gradient: Vector, server: Server, client: Client) -> Vector:
        return self.blend(gradient, server.m)

    def advance(self, server: Server, delta: Vector, c: Vector) -> Server:
        m = self.blend(c, server.m) if self.beta else server.m
        return Server(server.x - self.server_lr * delta, m)
