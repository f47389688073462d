"""FedMoSWA: FedSWA's rates with control variates, whose mean moves as a momentum.

    server  x, m = 0                          client i  c_i = 0
    send    x, m
    step    y <- y - eta_k (g(y) - c_i + m),  eta_k = eta (1 - (1 - rho) k / K)
    finish  c_i <- c_i - m + (x - y) / sum_k eta_k;  drift = c_i - m with the new c_i
    update  x <- x - eta_g mean(x - y);  m <- m + gamma mean(drift)

The steps of a round are k = 0, ..., K - 1; eta_g is the paper's alpha.

Liu, Liu, Shang, Liu, Liu, Feng. Improving Generalization in Federated Learning with Highly
Heterogeneous Data via Momentum-Based Stochastic Controlled Weight Averaging. ICML 2025.
arXiv:2507.20016

Departures: drift is averaged plainly even where delta is weighted by examples.  With weight decay,
c_i also holds the decay; the paper has none.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from torch import zeros_like

from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad, RandomInit
from hpcfl.algorithms.fedswa import FedSWA
from hpcfl.algorithms.scaffold import Local, State
from hpcfl.types import Fraction, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # momentum of the clients' c_i


class Upload(NamedTuple):
    delta: Vector
    drift: Vector  # c_i - m


@dataclass(frozen=True, kw_only=True)
class FedMoSWA(FedSWA):
    """FedMoSWA (Liu et al., 2025)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"drift"})

    gamma: Fraction = 0.2
    """Share of the clients' mean c_i in the new momentum."""

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd(
            "its c_i divide x - y by the sum of the rates, as plain steps are long"
        )
        facts.require_one_rate("it has this sum for rates that fall from one eta")
        return self

    def init_server(self, x0: Vector) -> Any:
        return Server(x=x0, m=zeros_like(x0))

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: State, client: Client) -> Local:
        return Local(correction=message.m - state.c)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        return grad(point) + local.correction, local

    def finish(
        self, y: Vector, local: Local, message: Server, state: State, client: Client
    ) -> tuple[Upload, State]:
        rates = client.lr * (client.steps + 1 + self.rho * (client.steps - 1)) / 2
        delta = message.x - y
        c = delta / rates - local.correction
        return Upload(delta, c - message.m), State(c)

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return Server(
            x=server.x - self.server_lr * mean.delta, m=server.m + self.gamma * mean.drift
        )
