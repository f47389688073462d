"""FedMIM: every local step moves along the last differences of the global model, too.

    server  x, x_(t-1) ... x_(t-J), all x_0   client  nothing
    send    x, x_(t-1) ... x_(t-J)
    step    d_j = (x_(t-j-1) - x_(t-j)) / K,  j = 0 ... J-1
            y1 = y - sum_j alpha_j d_j;  y2 = y - sum_j beta_j d_j
            y <- y1 - (1 - sum_j alpha_j) eta g(y2)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

Weight decay is taken at y2 and scaled as g is.

Liu, Sun, Ding, Shen, Liu, Tao. Enhance Local Consistency in Federated Learning: A Multi-Step
Inertial Momentum Approach. 2023, algorithm 1. arXiv:2302.05726

Departures: every difference is divided by the K of the client's current round, whatever the K of
the round that made it.  A round without clients, in which the model stays, adds no difference of
zero: t - 1 ... t - J are rounds with clients.  The paper counts no traffic for the past models,
which a client has that took part in each of the last J rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import NamedTuple, Self

from hpcfl.algorithms.base import Algorithm, Nothing, Upload
from hpcfl.algorithms.facts import Client, Cohort, Facts
from hpcfl.types import NonNegative, Vector


class Server(NamedTuple):
    x: Vector
    past: tuple[Vector, ...]  # x_(t-1) ... x_(t-J), the newest first


class Local(NamedTuple):
    shift: Vector  # sum_j alpha_j d_j
    look: Vector  # sum_j beta_j d_j


@dataclass(frozen=True, kw_only=True)
class FedMIM(Algorithm):
    """FedMIM (Liu et al., 2023)."""

    alpha: tuple[NonNegative, ...] = (0.6, 0.3)
    """Inertia of the step's start, for the newest difference first; in all less than 1."""
    beta: tuple[NonNegative, ...] = (0.9, 0.1)
    """Inertia of the point where the gradient is taken; as many as alpha."""

    def __post_init__(self) -> None:
        if not self.alpha or len(self.alpha) != len(self.beta):
            raise ValueError(
                f"alpha and beta have {len(self.alpha)} and {len(self.beta)} entries, expected "
                "the same number, at least one: one for each past difference"
            )
        if fsum(self.alpha) >= 1:
            raise ValueError(f"alpha sums to {fsum(self.alpha):g}, expected less than 1")

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd("its local steps have an inertia of their own, algorithm.alpha")
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, past=(x0,) * len(self.alpha))

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: Nothing, client: Client) -> Local:
        differences = [
            (older - newer) / client.steps for newer, older in pairwise((message.x, *message.past))
        ]
        return Local(_combined(self.alpha, differences), _combined(self.beta, differences))

    def points(self, y: Vector, local: Local, client: Client) -> tuple[Vector, Vector]:
        return y - local.shift, y - local.look

    def step_scale(self, y: Vector, local: Local, client: Client) -> float:
        return 1 - fsum(self.alpha)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.delta, (server.x, *server.past[:-1]))


def _combined(factors: Sequence[float], vectors: Sequence[Vector]) -> Vector:
    first, *rest = (factor * vector for factor, vector in zip(factors, vectors, strict=True))
    return sum(rest, start=first)
