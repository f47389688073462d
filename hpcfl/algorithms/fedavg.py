"""FedAvg: clients run SGD, the server averages.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, algorithm 1. arXiv:1602.05629

Departures: the server's learning rate eta_g (1 in the paper) is Reddi et al.'s (arXiv:2003.00295).
"""

from dataclasses import dataclass

from hpcfl.algorithms.base import Algorithm, Server, Upload
from hpcfl.algorithms.facts import Cohort
from hpcfl.types import Vector


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """FedAvg (McMahan et al., 2017)."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x0)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.delta)
