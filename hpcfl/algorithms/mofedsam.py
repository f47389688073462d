"""MoFedSAM: FedSAM's gradients with FedCM's momentum.

    server  x, Delta = 0                      client  nothing
    send    x, Delta
    step    y <- y - eta (alpha g(y + rho g(y) / norm(g(y))) + (1 - alpha) Delta)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta);  Delta <- mean(delta / (eta K_i))

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization.
ICML 2022, algorithm 2. arXiv:2206.02618

Departures: FedSAM's and FedCM's.
"""

from dataclasses import dataclass

from hpcfl.algorithms.facts import Grad
from hpcfl.algorithms.fedcm import FedCM, Local
from hpcfl.algorithms.fedsam import sharpness_aware
from hpcfl.types import NonNegative, Vector


@dataclass(frozen=True, kw_only=True)
class MoFedSAM(FedCM):
    """MoFedSAM (Qu et al., 2022)."""

    rho: NonNegative = 0.1
    """Radius of the ascent."""

    def gradient(self, point: Vector, local: Local, grad: Grad) -> Vector:
        return sharpness_aware(grad, point, self.rho)
