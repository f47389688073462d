"""GHB: heavy-ball momentum from the global model of tau rounds ago.

    server  x, x_(t-tau) ... x_(t-1)          client  nothing
    send    x, x_(t-tau)
    step    y <- y - eta g(y) + beta / (tau K) (x - x_(t-tau));  no momentum while t < tau
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

Zaccone, Masone, Ciccone. Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum. 2023, equation 4. arXiv:2311.18578

Departures: ``nesterov`` (move along the momentum first; gradient and weight decay are taken there)
is in the authors' configuration, not in the paper.  A round without clients leaves the past models
as they are, so that the tau rounds between x_(t-tau) and x are rounds with clients; in t < tau all
rounds count.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from hpcfl.algorithms.base import Algorithm, Nothing, Upload
from hpcfl.algorithms.facts import Client, Cohort, Facts
from hpcfl.types import Count, Fraction, NonNegative, Vector

MAX_DEFAULT_TAU = 100_000  # the server keeps tau models


class Server(NamedTuple):
    x: Vector
    past: tuple[Vector, ...]  # x_(t-tau) ... x_(t-1), the oldest first; x_0 where t < tau


class Message(NamedTuple):
    x: Vector
    anchor: Vector  # x_(t-tau)


class Local(NamedTuple):
    momentum: Vector  # constant over the round


@dataclass(frozen=True, kw_only=True)
class GHB(Algorithm):
    """GHB (generalised heavy-ball momentum, sent by the server)."""

    beta: NonNegative = 0.9
    """Momentum factor."""
    tau: Count | None = None
    """How many rounds the momentum reaches back; round(1 / C) when absent (1 outside a job)."""
    nesterov: bool = False
    """Take the gradient and the weight decay after the step along the momentum."""
    participation: Fraction | None = None
    """C; the job's configured participation when absent."""

    def resolve(self, facts: Facts) -> "GHB":
        facts.require_plain_sgd("its local steps have a momentum of their own, algorithm.beta")
        participation = self.participation or facts.participation
        if self.tau is None and participation * MAX_DEFAULT_TAU < 1:
            raise ValueError(
                f"takes tau = round(1 / C), which is more than {MAX_DEFAULT_TAU} for "
                f"C = {participation:g}; set algorithm.tau"
            )
        return replace(self, participation=participation, tau=self.tau or round(1 / participation))

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, past=(x0,) * (self.tau or 1))

    def broadcast(self, server: Server, cohort: Cohort) -> Message:
        return Message(server.x, server.past[0])

    def begin(self, message: Message, state: Nothing, client: Client) -> Local:
        tau = self.tau or 1
        factor = self.beta / (tau * client.steps) * (client.round >= tau)
        return Local(factor * (message.x - message.anchor))

    def points(self, y: Vector, local: Local, client: Client) -> tuple[Vector, Vector]:
        start = y + local.momentum
        return start, start if self.nesterov else y

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.delta, (*server.past[1:], server.x))
