"""DiLoCo: workers take many steps of AdamW, and the server steps by Nesterov's momentum.

    server  x, v = 0                          client  the state of its optimiser, where it is kept
    send    x
    step    y <- y - eta AdamW(g(y)), or another optimiser of the job
    finish  delta = x - y
    update  v <- beta v + mean(delta);  x <- x - eta_g (mean(delta) + beta v), v the new one

The paper's inner optimiser, the one of a worker, is ``local.optimizer``, its H is ``local.steps``.
With plain SGD this is FedAvgM with Nesterov's momentum.

Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen. DiLoCo: Distributed
Low-Communication Training of Language Models. 2023, algorithm 1. arXiv:2311.08105

Departures: any cohorts and weights (all workers, plain means there).  A job whose optimiser has a
state says whether workers keep it.  The update and its defaults were read in public code, not in
the paper.  Nor was the paper's setting, which is to be written in the job: AdamW with b2 0.95,
weight decay 0.1, a rate of 4e-4 after 1000 steps of warm-up, H 500, 8 workers.
"""

from dataclasses import dataclass
from typing import Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Upload
from hpcfl.algorithms.facts import Cohort, Facts
from hpcfl.algorithms.fedavgm import Server, moved
from hpcfl.types import Decay, Positive, Vector


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Algorithm):
    """DiLoCo (Douillard et al., 2023)."""

    server_lr: Positive = 0.7
    """eta_g, the server's learning rate."""
    beta: Decay = 0.9
    """Momentum factor."""

    def resolve(self, facts: Facts) -> Self:
        has_state = facts.optimizer != "sgd" or facts.momentum > 0
        if has_state and facts.keep_optimizer is None:
            raise ValueError(
                f"needs to know whether the clients' {facts.optimizer} goes on in their next round "
                "or begins afresh in each, which are two methods; set local.keep_optimizer=true, "
                "or false"
            )
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, v=zeros_like(x0))

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return moved(server, mean.delta, self.beta, self.server_lr, nesterov=True)
