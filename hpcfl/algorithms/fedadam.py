"""FedAdam: Adam at the server.

    server  x, m = 0, v = v0                  client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = x - y
    update  m <- b1 m - (1 - b1) D,  D = mean(delta)
            v <- b2 v + (1 - b2) D^2
            x <- x + eta_g m / (sqrt(v) + tau)

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021, algorithm 2. arXiv:2003.00295

Departures: v starts at v0 = 0, where the paper asks for at least tau^2.  ``bias_correction``
divides m by 1 - b1^(t+1) and v by 1 - b2^(t+1), as Adam does and the paper does not.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import full_like, zeros_like

from hpcfl.algorithms.base import Algorithm, Upload
from hpcfl.algorithms.facts import Cohort
from hpcfl.types import Decay, NonNegative, Positive, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # decaying mean of -D
    v: Vector  # decaying mean of D^2


@dataclass(frozen=True, kw_only=True)
class FedAdam(Algorithm):
    """FedAdam (Reddi et al., 2021)."""

    server_lr: Positive = 0.1
    """eta_g, the server's learning rate."""
    b1: Decay = 0.9
    """Decay of m."""
    b2: Decay = 0.99
    """Decay of v."""
    tau: Positive = 1e-3
    """Degree of adaptivity, added to sqrt(v)."""
    v0: NonNegative = 0.0
    """v before the first round, in every coordinate."""
    bias_correction: bool = False
    """Correct m and v for their zero start, as Adam does."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, m=zeros_like(x0), v=full_like(x0, self.v0))

    def second(self, v: Vector, square: Vector) -> Vector:
        """The new v, of the old one and D^2."""
        return self.b2 * v + (1 - self.b2) * square

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        m = self.b1 * server.m - (1 - self.b1) * mean.delta
        v = self.second(server.v, mean.delta * mean.delta)
        count = cohort.round + 1
        first, second = (
            (m / (1 - self.b1**count), v / (1 - self.b2**count)) if self.bias_correction else (m, v)
        )
        step = first / (second.sqrt() + self.tau)
        return Server(server.x + self.server_lr * step, m, v)
