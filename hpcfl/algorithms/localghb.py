"""LocalGHB: heavy-ball momentum from the global model that a client received the last time.

    server  x                                 client i  a_i = none
    send    x
    step    y <- y - eta g(y) + (beta C / K) (x - a_i);  no momentum while a_i = none
    finish  delta = x - y;  a_i <- x
    update  x <- x - eta_g mean(delta)

C is the configured participation, K the local steps of the round: a client comes back after
1 / C rounds on average, so a_i stands for the x_(t-tau) of GHB with tau = 1 / C, and need not be
sent.

Zaccone, Masone, Ciccone. Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum. 2023. arXiv:2311.18578

Departures: ``nesterov`` (move along the momentum first; gradient and weight decay are taken there)
is in the authors' configuration, not in the paper.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.facts import Client, Facts, RandomInit
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Fraction, NonNegative, Scalar, Vector


class State(NamedTuple):
    anchor: Vector  # the model that this client received the last time
    known: Scalar  # 0-d, 1 once it has taken part, else 0


class Local(NamedTuple):
    momentum: Vector  # constant over the round


@dataclass(frozen=True, kw_only=True)
class LocalGHB(FedAvg):
    """LocalGHB (generalised heavy-ball momentum, anchored at the client)."""

    beta: NonNegative = 0.9
    """Momentum factor."""
    nesterov: bool = False
    """Take the gradient and the weight decay after the step along the momentum."""
    participation: Fraction | None = None
    """C; the job's configured participation when absent (1 outside a job)."""

    def resolve(self, facts: Facts) -> "LocalGHB":
        facts.require_plain_sgd("its local steps have a momentum of their own, algorithm.beta")
        return replace(self, participation=self.participation or facts.participation)

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(anchor=x0, known=x0.new_zeros(()))

    def begin(self, message: Message, state: State, client: Client) -> Local:
        factor = state.known * self.beta * (self.participation or 1.0) / client.steps
        return Local(factor * (message.x - state.anchor))

    def points(self, y: Vector, local: Local, client: Client) -> tuple[Vector, Vector]:
        start = y + local.momentum
        return start, start if self.nesterov else y

    def finish(
        self, y: Vector, local: Local, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        return Upload(message.x - y), State(anchor=message.x, known=state.known.new_ones(()))
