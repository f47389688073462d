"""FedNova: every client's movement counts per local step, so that more steps weigh no more.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta (g(y) + mu (y - x))
    finish  d_i = (x - y) / a_i,  a_i = K_i                                       (mu = 0)
            a_i = (K_i - rho (1 - rho^K_i) / (1 - rho)) / (1 - rho),  rho = local.momentum
            a_i = (1 - (1 - eta mu)^K_i) / (eta mu)                               (mu > 0)
    update  x <- x - eta_g tau mean(d_i),  tau = mean(a_i), or mean(K_i) for mu > 0

a_i is what K_i equal gradients of a client are worth.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020. arXiv:2007.07481

Departures: the steps of mu are counted with tau = mean(K_i), as in the authors' code.  Weight decay
is part of x - y, and not of a_i.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcfl.algorithms.base import Message, Nothing, Server
from hpcfl.algorithms.facts import Client, Cohort, Facts
from hpcfl.algorithms.fedprox import FedProx
from hpcfl.types import NonNegative, Scalar, Vector


class Upload(NamedTuple):
    direction: Vector  # (x - y) / a_i
    steps: Scalar  # a_i, or K_i for mu > 0


@dataclass(frozen=True, kw_only=True)
class FedNova(FedProx):
    """FedNova (Wang et al., 2020)."""

    mu: NonNegative = 0.0
    """Weight of the proximal term (mu / 2) norm(y - x)^2."""

    def resolve(self, facts: Facts) -> "FedNova":
        if self.mu:
            facts.require_plain_sgd(
                "its a_i are those of momentum or of a proximal term; set mu: 0"
            )
            facts.require_one_rate("its a_i follow from mu eta; set mu: 0")
        if facts.optimizer != "sgd":
            raise ValueError(
                f"counts steps of SGD, not of {facts.optimizer}; set local.optimizer=sgd"
            )
        if facts.nesterov:
            raise ValueError(
                "counts steps of plain momentum, not of Nesterov's; set local.nesterov=false"
            )
        if facts.keep_optimizer:
            raise ValueError(
                "has a_i of a momentum that is 0 at the start of each round; set "
                "local.keep_optimizer=false"
            )
        return self

    def finish(
        self, y: Vector, local: Message, message: Message, state: Nothing, client: Client
    ) -> tuple[Any, Nothing]:
        steps, rho = client.steps, self.facts.momentum
        if self.mu:
            pull = self.mu * client.lr
            a = (1 - (1 - pull) ** steps) / pull
        else:
            a = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return Upload((message.x - y) / a, (steps if self.mu else a).to(y.dtype)), state

    def update(self, server: Server, mean: Any, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.steps * mean.direction)
