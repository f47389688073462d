"""Ditto: beside FedAvg every client trains a model of its own, held near the global one.

    server  x                                 client i  v_i = x_0
    send    x
    step    y <- y - eta g(y)
            v_i <- v_i - eta (g(v_i) + lam (v_i - x)), on the same batch
    finish  delta = x - y;  v_i is kept
    update  x <- x - eta_g mean(delta)

The model of client i is v_i; x is the model that the client received.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021, algorithm 1. arXiv:2012.04221

Departures: v_i takes as many steps as y, on its batches; lam is the same for all clients.  eta_g is
ours (1 there).
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.facts import Client, Facts, Grad, RandomInit
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import NonNegative, Vector


class State(NamedTuple):
    v: Vector  # the client's own model


class Local(NamedTuple):
    x: Vector
    v: Vector


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """Ditto (Li et al., 2021)."""

    lam: NonNegative = 1.0
    """How strongly a client's own model is drawn to the global one."""

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd("the clients' own models take plain steps")
        if facts.statistics:
            raise ValueError(
                "has two models of a client, and one set of running statistics; set "
                "model.statistics=frozen"
            )
        return self

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(x0)

    def begin(self, message: Message, state: State, client: Client) -> Local:
        return Local(message.x, state.v)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        d, v = grad(point), local.v
        step = grad(v) + self.lam * (v - local.x) + self.facts.weight_decay * v
        return d, Local(local.x, v - client.lr * step)

    def finish(
        self, y: Vector, local: Local, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        return Upload(message.x - y), State(local.v)

    def personal_model(self, x: Vector, state: State) -> Vector:
        return state.v
