"""FedInit: clients start away from the global model, on the side opposite to their last local one.

    server  x                                 client i  z_i = x_0
    send    x
    first   y = x + beta (x - z_i)
    step    y <- y - eta g(y)
    finish  z_i <- y;  delta = x - y, or (x + beta (x - z_i)) - y with the old z_i (delta: start)
    update  x <- x - eta_g mean(delta)

Sun, Shen, Tao. Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed
Initialization. NeurIPS 2023. arXiv:2306.05706

Departures: delta is taken from x, so that with eta_g = 1 the new model is the mean of the final
local models; ``delta: start`` is the authors' code.  eta_g is ours (1 there).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.facts import Client, RandomInit
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import NonNegative, Vector


class State(NamedTuple):
    z: Vector  # where this client's last local training ended


@dataclass(frozen=True, kw_only=True)
class FedInit(FedAvg):
    """FedInit (Sun et al., 2023)."""

    beta: NonNegative = 0.1
    """How far clients start beyond the global model, in distances from their last local one."""
    delta: Literal["model", "start"] = "model"
    """Where a client's movement is counted from: the model that it received, or its start."""

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(z=x0)

    def first_point(self, message: Message, state: State, client: Client) -> Vector:
        return message.x + self.beta * (message.x - state.z)

    def finish(
        self, y: Vector, local: Message, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        origin = message.x if self.delta == "model" else self.first_point(message, state, client)
        return Upload(origin - y), State(z=y)
