"""SCAFFOLD: clients correct their drift by control variates.

    server  x, c = 0                          client i  c_i = 0               (first: zero)
            c = 1/N sum grad f_i(x0)                    c_i = grad f_i(x0)    (first: gradient)
    send    x, c
    step    y <- y - eta (g(y) - c_i + c)
    finish  c_i+ = grad f_i(x)                                (option 1)
            c_i+ = c_i - c + (x - y) / (K eta)                (option 2)
            dc = c_i+ - c_i
    update  x <- x - eta_g mean(x - y);  c <- c + |S|/N mean(dc)

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020, algorithm 1. arXiv:1910.06378

Departures: the start first: gradient, of all clients at once before round 1, is ours.
dc is averaged plainly even where delta is weighted by examples, so that c stays the mean of all
c_i.  Option 1 and the warm start take the gradient over all of the client's examples, not a
batch.  With weight decay, option 2's (x - y) / (K eta) also holds the decay; the paper has none.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, FullGradientScope, Grad, RandomInit
from hpcfl.types import Vector


class Server(NamedTuple):
    x: Vector
    c: Vector  # the mean of all clients' control variates


class State(NamedTuple):
    c: Vector  # c_i, this client's control variate


class Local(NamedTuple):
    correction: Vector  # c - c_i, constant over the round


class Upload(NamedTuple):
    delta: Vector
    dc: Vector


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al., 2020)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"dc"})

    option: Literal[1, 2] = 2
    """The new c_i of a client: 1, its full gradient at x; 2, the mean of its local steps."""

    first: Literal["zero", "gradient"] = "zero"
    """The first c_i: zero, or all clients' full gradients at the initial model, before round 1."""

    @property
    def warm_start(self) -> bool:
        """For the first control variates."""
        return self.first == "gradient"

    @property
    def full_gradient(self) -> FullGradientScope:
        """Each client's own, for option 1."""
        return "client" if self.option == 1 else "none"

    def resolve(self, facts: Facts) -> Self:
        if self.option == 2:
            facts.require_plain_sgd(
                "option 2 takes (x - y) / (K eta) as the mean of K plain steps; set option: 1"
            )
            facts.require_one_rate("option 2 divides x - y by K eta; set option: 1")
        return self

    def init_server(self, x0: Vector, grad: Vector | None = None) -> Server:
        return Server(x=x0, c=zeros_like(x0) if grad is None else grad)

    def init_client(self, x0: Vector, random_init: RandomInit, grad: Vector | None = None) -> State:
        return State(c=zeros_like(x0) if grad is None else grad)

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: State, client: Client) -> Local:
        return Local(correction=message.c - state.c)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        return self.gradient(point, local, grad) + local.correction, local

    def gradient(self, point: Vector, local: Any, grad: Grad) -> Vector:
        """The gradient of a step; methods over this one take it elsewhere."""
        return grad(point)

    def finish(
        self, y: Vector, local: Local, message: Server, state: State, client: Client
    ) -> tuple[Upload, State]:
        delta = message.x - y
        if self.option == 1:
            dc = client.full_grad - state.c
        else:
            dc = delta / (client.steps * client.lr) - message.c
        return Upload(delta, dc), State(state.c + dc)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(
            x=server.x - self.server_lr * mean.delta,
            c=server.c + cohort.size / cohort.population * mean.dc,
        )
