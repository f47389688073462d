"""FedGAMMA: SCAFFOLD along FedSAM's gradients.

    server  x, c = 0                          client i  c_i = 0
    send    x, c
    step    y <- y - eta (g(y + rho g(y) / norm(g(y))) - c_i + c), both on the same batch
    finish  c_i+ = c_i - c + (x - y) / (K eta);  dc = c_i+ - c_i
    update  x <- x - eta_g mean(x - y);  c <- c + |S|/N mean(dc)

Dai, Yang, Sun, Shen, Tian, Wang, Zhang. FedGAMMA: Federated Learning with Global Sharpness-Aware
Minimization. IEEE Transactions on Neural Networks and Learning Systems 2023.

Departures: SCAFFOLD's and FedSAM's; ``option`` 1 and ``first`` are SCAFFOLD's.
"""

from dataclasses import dataclass
from typing import Any

from hpcfl.algorithms.facts import Grad
from hpcfl.algorithms.fedsam import sharpness_aware
from hpcfl.algorithms.scaffold import Scaffold
from hpcfl.types import NonNegative, Vector


@dataclass(frozen=True, kw_only=True)
class FedGAMMA(Scaffold):
    """FedGAMMA (Dai et al., 2023)."""

    rho: NonNegative = 0.01
    """Radius of the ascent."""

    def gradient(self, point: Vector, local: Any, grad: Grad) -> Vector:
        return sharpness_aware(grad, point, self.rho)
