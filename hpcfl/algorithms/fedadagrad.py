"""FedAdagrad: Adagrad at the server.

    server  x, m = 0, v = v0                  client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = x - y
    update  m <- b1 m - (1 - b1) D,  D = mean(delta)
            v <- v + D^2
            x <- x + eta_g m / (sqrt(v) + tau)

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021, algorithm 2. arXiv:2003.00295

Departures: v starts at v0 = 0, where the paper asks for at least tau^2.
"""

from dataclasses import dataclass

from torch import full_like, zeros_like

from hpcfl.algorithms.base import Algorithm, Upload
from hpcfl.algorithms.facts import Cohort
from hpcfl.algorithms.fedadam import Server
from hpcfl.types import Decay, NonNegative, Positive, Vector


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(Algorithm):
    """FedAdagrad (Reddi et al., 2021)."""

    server_lr: Positive = 0.1
    """eta_g, the server's learning rate."""
    b1: Decay = 0.0
    """Decay of m."""
    tau: Positive = 1e-3
    """Degree of adaptivity, added to sqrt(v)."""
    v0: NonNegative = 0.0
    """v before the first round, in every coordinate."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, m=zeros_like(x0), v=full_like(x0, self.v0))

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        m = self.b1 * server.m - (1 - self.b1) * mean.delta
        v = server.v + mean.delta * mean.delta
        return Server(server.x + self.server_lr * m / (v.sqrt() + self.tau), m, v)
