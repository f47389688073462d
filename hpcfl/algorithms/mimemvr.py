"""MimeMVR: Mime over momentum-based variance reduction, the server's m of full gradients.

    server  x, x' = x, m                      client  nothing
    first   grad f_i at x and at x' of every client of the cohort;  c, c' = their plain means
            m <- c + beta (m - c');  m = c in the first round
    send    x, x', m
    step    y <- y - eta (g(y; b) + beta (m - g(x; b)))
    finish  delta = x - y
    update  x' <- x;  x <- x - eta_g mean(delta)

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, the MVR form of algorithm 1. arXiv:2008.03606;
Cutkosky, Orabona. Momentum-Based Variance Reduction in Non-Convex SGD. NeurIPS 2019.
arXiv:1905.10018

Departures: beta is the paper's 1 - a.  Both means are of one cohort, over each client's whole
data; that clients follow this round's m, and that x' is the model before the last round, is our
reading.  The server's learning rate eta_g is ours (1 there).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import ones_like, zeros_like

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, FullGradientScope, Grad
from hpcfl.types import Scalar, Share, Vector


class Server(NamedTuple):
    x: Vector
    previous: Vector  # x', the model before the last round
    m: Vector
    started: Scalar  # 0 before the first round, then 1


class Message(NamedTuple):
    x: Vector
    m: Vector


@dataclass(frozen=True, kw_only=True)
class MimeMVR(Algorithm):
    """Mime (Karimireddy et al., 2021) over momentum-based variance reduction, as we read it."""

    beta: Share = 0.9
    """Factor of the momentum, the paper's 1 - a."""

    @property
    def full_gradient(self) -> FullGradientScope:
        """Their means, at the server alone."""
        return "server"

    def full_gradient_points(self, server: Server) -> tuple[Vector, ...]:
        return server.x, server.previous

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd(
            "its clients follow the server's momentum, which stays fixed while they train"
        )
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, previous=x0, m=zeros_like(x0), started=x0.new_zeros(()))

    def broadcast(self, server: Server, cohort: Cohort) -> Message:
        return Message(server.x, self.momentum(server, cohort))

    def momentum(self, server: Server, cohort: Cohort) -> Vector:
        """The m of a round, which its clients follow and the server keeps."""
        c, before = cohort.grads
        return c + self.beta * server.started * (server.m - before)

    def direction(
        self, point: Vector, local: Message, grad: Grad, client: Client
    ) -> tuple[Vector, Message]:
        return grad(point) + self.beta * (local.m - grad(local.x)), local

    def update(self, server: Server, mean: Any, cohort: Cohort) -> Server:
        x = server.x - self.server_lr * mean.delta
        return Server(x, server.x, self.momentum(server, cohort), ones_like(server.started))
