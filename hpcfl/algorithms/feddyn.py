"""FedDyn: a linear term and a proximal term align the clients' optima with the global one.

    server  x, h = 0                          client i  l_i = 0
    send    x
    step    y <- y - eta (g(y) - l_i + alpha (y - x))
    finish  l_i <- l_i - alpha (y - x)
    update  h <- h - (alpha / N) sum (y_i - x)
            x <- (x - eta_g mean(x - y_i)) - h / alpha

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021, algorithm 1. arXiv:2111.04263

Departures: local work is the job's, not an exact minimum.  The sum of h is plain even where the
mean is weighted by examples, so that h stays the mean of all l_i.  eta_g is ours (1 there).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Message
from hpcfl.algorithms.facts import Client, Cohort, Grad, RandomInit
from hpcfl.types import Positive, Vector


class Server(NamedTuple):
    x: Vector
    h: Vector  # the mean of all clients' l_i


class State(NamedTuple):
    l: Vector  # noqa: E741  # l_i, the gradient of f_i at this client's last local model


class Local(NamedTuple):
    x: Vector
    l: Vector  # noqa: E741


class Upload(NamedTuple):
    delta: Vector
    moved: Vector  # delta again, for its plain mean


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """FedDyn (Acar et al., 2021)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"moved"})
    not_transmitted: ClassVar[frozenset[str]] = frozenset({"moved"})

    alpha: Positive = 0.1
    """Weight of the proximal term."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, h=zeros_like(x0))

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(zeros_like(x0))

    def begin(self, message: Message, state: State, client: Client) -> Local:
        return Local(message.x, state.l)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        gradient = self.gradient(point, local, grad)
        return gradient - local.l + self.alpha * (point - local.x), local

    def gradient(self, point: Vector, local: Any, grad: Grad) -> Vector:
        """The gradient of a step; methods over this one take it elsewhere."""
        return grad(point)

    def finish(
        self, y: Vector, local: Local, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        delta = message.x - y
        return Upload(delta, delta), State(state.l + self.alpha * delta)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        h = server.h + self.alpha * cohort.size / cohort.population * mean.moved
        return Server(server.x - self.server_lr * mean.delta - h / self.alpha, h)
