"""FedSWA: the local learning rate falls within a round, and the server steps beyond the mean.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta_k g(y),  eta_k = eta (1 - (1 - rho) k / K)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

The steps of a round are k = 0, ..., K - 1; eta_g is the paper's alpha.

Liu, Liu, Shang, Liu, Liu, Feng. Improving Generalization in Federated Learning with Highly
Heterogeneous Data via Momentum-Based Stochastic Controlled Weight Averaging. ICML 2025.
arXiv:2507.20016

Departures: none; the authors' code has other defaults (rho 0, alpha 1, twice the rate).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hpcfl.algorithms.facts import Client
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Positive, Share, Vector


@dataclass(frozen=True, kw_only=True)
class FedSWA(FedAvg):
    """FedSWA (Liu et al., 2025)."""

    server_lr: Positive = 1.5
    """alpha, the server's learning rate."""
    rho: Share = 0.1
    """The rate after the last local step, in units of that of the first."""

    def step_scale(self, y: Vector, local: Any, client: Client) -> Tensor:
        return 1 - (1 - self.rho) * client.step / client.steps
