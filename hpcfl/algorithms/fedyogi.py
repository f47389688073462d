"""FedYogi: Yogi at the server, whose v grows and shrinks by bounded steps.

    server  x, m = 0, v = v0                  client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = x - y
    update  as FedAdam, but v <- v - (1 - b2) D^2 sign(v - D^2),  D = mean(delta)

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021, algorithm 2. arXiv:2003.00295

Departures: FedAdam's.
"""

from dataclasses import dataclass

from hpcfl.algorithms.fedadam import FedAdam
from hpcfl.types import Vector


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedYogi (Reddi et al., 2021)."""

    def second(self, v: Vector, square: Vector) -> Vector:
        return v - (1 - self.b2) * square * (v - square).sign()
