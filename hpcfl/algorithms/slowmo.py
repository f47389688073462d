"""SlowMo: a slow momentum at the server, of movements in units of the local learning rate.

    server  x, u = 0                          client  the state of its optimiser, where it is kept
    send    x
    step    y <- y - eta d(y), by any optimiser of the job
    finish  delta = x - y
    update  u <- beta u + mean(delta) / eta;  x <- x - eta_g eta u

eta in the update is the rate of the round's last local step.  At a constant rate this is FedAvgM;
where rates fall, so does the weight of what the momentum holds.  ``local.keep_optimizer`` true and
false are the paper's strategies "maintain" and "reset" for the buffers of the optimiser.

Wang, Tantia, Ballas, Rabbat. SlowMo: Improving Communication-Efficient Distributed SGD with Slow
Momentum. ICLR 2020, algorithm 1. arXiv:1910.00643

Departures: any cohorts and weights (all workers, plain means there); no strategy "average" for the
buffers.  The paper's alpha is eta_g.  The update is that of the code in fairscale, which has the
rate of the last step too; the default of beta was not checked against the paper.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Upload
from hpcfl.algorithms.facts import Cohort
from hpcfl.types import Decay, Vector


class Server(NamedTuple):
    x: Vector
    u: Vector  # the slow momentum


@dataclass(frozen=True, kw_only=True)
class SlowMo(Algorithm):
    """SlowMo (Wang et al., 2020)."""

    beta: Decay = 0.7
    """Momentum factor."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, u=zeros_like(x0))

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        u = self.beta * server.u + mean.delta / cohort.lr
        return Server(server.x - self.server_lr * cohort.lr * u, u)
