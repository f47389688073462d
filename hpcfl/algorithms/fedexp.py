"""FedExP: the server steps further, the more the clients' movements differ in direction.

    server  x, x' = x, eta_g = 1              client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = x - y,  square = norm(x - y)^2
    update  eta_g = max(1, mean(square) / (2 (norm(D)^2 + eps))),  D = mean(delta)
            x' <- x;  x <- x - eta_g D
            evaluated: x, or (x + x') / 2 for average 2

Jhunjhunwala, Wang, Joshi. FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023.
arXiv:2301.09604

Departures: the means follow the job's weights.  eps is the same in every round and for every
cohort; the authors' code multiplies it by the cohort's size and lets it fall with the rate.  That
code evaluates as ``average: 2`` does, but x alone after the first round.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from hpcfl.algorithms.base import Algorithm, Message, Nothing
from hpcfl.algorithms.facts import Client, Cohort, Facts
from hpcfl.types import Positive, Scalar, Vector


class Server(NamedTuple):
    x: Vector
    previous: Vector  # x', the model before the last round; [0] for average 1
    rate: Scalar  # eta_g of the last round


class Upload(NamedTuple):
    delta: Vector
    square: Scalar  # norm(delta)^2


@dataclass(frozen=True, kw_only=True)
class FedExP(Algorithm):
    """FedExP (Jhunjhunwala et al., 2023)."""

    eps: Positive = 1e-3
    """Added to norm(D)^2."""
    average: Literal[1, 2] = 1
    """The number of last models whose mean is evaluated."""

    def resolve(self, facts: Facts) -> "FedExP":
        if self.server_lr != 1:
            raise ValueError("finds the server's learning rate itself; remove algorithm.server_lr")
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x0, x0 if self.average == 2 else x0[:0], rate=x0.new_ones(()))

    def broadcast(self, server: Server, cohort: Cohort) -> Message:
        return Message(server.x)

    def finish(
        self, y: Vector, local: Message, message: Message, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        delta = message.x - y
        return Upload(delta, delta.norm() ** 2), state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        ratio = mean.square / (2 * (mean.delta.norm() ** 2 + self.eps))
        rate = ratio.clamp(min=1)
        previous = server.x if self.average == 2 else server.previous
        return Server(server.x - rate * mean.delta, previous, rate)

    def round_numbers(self, server: Server) -> dict[str, Scalar]:
        return {"eta_g": server.rate}

    def evaluated(self, server: Server) -> Vector:
        return (server.x + server.previous) / 2 if self.average == 2 else server.x
