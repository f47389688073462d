"""Centralised training: SGD with momentum on the pooled data, the baseline of target accuracies.

    server  x                                 client  v = 0, of the only client
    send    x
    step    v <- beta v + g(y);  y <- y - eta v, weight decay being part of g
    finish  v is kept;  delta = x - y
    update  x <- x - eta_g delta

A round is as many epochs or steps as the job says; one client holds all data.

Sutskever, Martens, Dahl, Hinton. On the importance of initialization and momentum in deep
learning. ICML 2013, equations 1 and 2, in the form that deep-learning libraries use.

Departures: v <- beta v + g, y <- y - eta v instead of v <- beta v - eta g, y <- y + v, which
differ where eta changes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.facts import Client, Facts, Grad, RandomInit
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Decay, Vector


class State(NamedTuple):
    v: Vector  # momentum after the last step


@dataclass(frozen=True, kw_only=True)
class Centralized(FedAvg):
    """Centralised SGD with momentum: the data pooled in one client."""

    beta: Decay = 0.9
    """Momentum factor."""

    def resolve(self, facts: Facts) -> "Centralized":
        facts.require_plain_sgd("its momentum lasts over the rounds: algorithm.beta")
        if facts.population != 1:
            raise ValueError(
                f"trains on pooled data, but the data is divided among {facts.population} clients; "
                "set data.partition={kind: pooled}, data.clients=null and cohort={kind: cyclic, "
                "size: 1}"
            )
        return self

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(zeros_like(x0))

    def begin(self, message: Message, state: State, client: Client) -> State:
        return state

    def direction(
        self, point: Vector, local: State, grad: Grad, client: Client
    ) -> tuple[Vector, State]:
        decay = self.facts.weight_decay
        step = grad(point) + self.beta * local.v
        v = step.add(point, alpha=decay) if decay else step  # the decay enters the momentum
        return step, State(v)

    def finish(
        self, y: Vector, local: State, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        return Upload(message.x - y), local
