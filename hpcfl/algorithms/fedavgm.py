"""FedAvgM: momentum at the server.

    server  x, v = 0                          client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = x - y
    update  v <- beta v + mean(delta);  x <- x - eta_g v
            x <- x - eta_g (mean(delta) + beta v), v the new one   (nesterov)

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. 2019, section 3.3. arXiv:1909.06335

Departures: none.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Upload
from hpcfl.algorithms.facts import Cohort
from hpcfl.types import Decay, Vector


class Server(NamedTuple):
    x: Vector
    v: Vector  # the momentum


def moved(server: Server, delta: Vector, beta: float, lr: float, *, nesterov: bool) -> Server:
    """The server after a step of torch.optim.SGD with momentum ``beta`` and gradient ``delta``."""
    v = beta * server.v + delta
    step = delta + beta * v if nesterov else v
    return Server(server.x - lr * step, v)


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm):
    """FedAvgM (Hsu et al., 2019)."""

    beta: Decay = 0.9
    """Momentum factor."""
    nesterov: bool = False
    """Step along mean(delta) + beta v instead of v."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, v=zeros_like(x0))

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return moved(server, mean.delta, self.beta, self.server_lr, nesterov=self.nesterov)
