"""FedHBM: heavy-ball momentum from each client's own last local model.

    server  x                                 client i  z_i = none
    send    x
    step    y <- y - eta g(y) + (beta C / K) (y - z_i),  y on the right the one before the step;
            no momentum while z_i = none (first: zero)
    finish  z_i <- y
    update  x <- x - eta_g mean(x - y)

C is the configured participation, K the local steps of the round.  At its first participation a
client has no z_i: with ``first: shared`` it uses the constant (beta C / K) (x_t - x_0), with
``first: random`` the same with a random initialisation of its own for x_0.

Zaccone, Masone, Ciccone. Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum. 2023, algorithm 1 and equation 5; first participation: section 4.3, figure 4.
arXiv:2311.18578

Departures: ``nesterov`` (move along the momentum first; gradient and weight decay are taken there)
is in the authors' configuration, not in the algorithm's listing.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.facts import Client, Facts, RandomInit
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Fraction, NonNegative, Scalar, Vector


class State(NamedTuple):
    z: Vector  # where this client's last local training ended
    known: Scalar  # 0-d, 1 once it has taken part, else 0


class Local(NamedTuple):
    x: Vector
    z: Vector
    known: Scalar
    momentum: Scalar  # beta C / K, or 0 where the first participation has none


@dataclass(frozen=True, kw_only=True)
class FedHBM(FedAvg):
    """FedHBM (generalised heavy-ball momentum, local form)."""

    beta: NonNegative = 1.0
    """Momentum factor."""
    first: Literal["zero", "shared", "random"] = "zero"
    """The momentum of a client's first participation."""
    nesterov: bool = False
    """Take the gradient and the weight decay after the step along the momentum."""
    participation: Fraction | None = None
    """C; the job's configured participation when absent (1 outside a job)."""

    def resolve(self, facts: Facts) -> "FedHBM":
        facts.require_plain_sgd("its local steps have a momentum of their own, algorithm.beta")
        return replace(self, participation=self.participation or facts.participation)

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(random_init() if self.first == "random" else x0, known=x0.new_zeros(()))

    def begin(self, message: Message, state: State, client: Client) -> Local:
        active = state.known if self.first == "zero" else 1.0
        momentum = active * self.beta * (self.participation or 1.0) / client.steps
        return Local(message.x, state.z, state.known, momentum)

    def points(self, y: Vector, local: Local, client: Client) -> tuple[Vector, Vector]:
        now = y if self.first == "zero" else local.x.lerp(y, local.known)  # x where known = 0
        start = y + local.momentum * (now - local.z)
        return start, start if self.nesterov else y

    def finish(
        self, y: Vector, local: Local, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        return Upload(message.x - y), State(z=y, known=y.new_ones(()))
