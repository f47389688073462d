"""FedSAM: every local step minimises the sharpness around its point.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta g(y + rho g(y) / norm(g(y))), both on the same batch
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization.
ICML 2022, algorithm 1. arXiv:2206.02618

Departures: the norm has no epsilon; where the gradient is zero there is no ascent.
"""

from dataclasses import dataclass

from torch import where

from hpcfl.algorithms.base import Message
from hpcfl.algorithms.facts import Client, Grad
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import NonNegative, Vector


@dataclass(frozen=True, kw_only=True)
class FedSAM(FedAvg):
    """FedSAM (Qu et al., 2022)."""

    rho: NonNegative = 0.1
    """Radius of the ascent."""

    def direction(
        self, point: Vector, local: Message, grad: Grad, client: Client
    ) -> tuple[Vector, Message]:
        return sharpness_aware(grad, point, self.rho), local


def sharpness_aware(grad: Grad, point: Vector, rho: float) -> Vector:
    """The gradient at distance ``rho`` uphill of ``point`` (Foret et al., 2021, equation 3)."""
    return grad(point + ascent(grad(point), rho))


def ascent(uphill: Vector, rho: float) -> Vector:
    """The vector of norm ``rho`` along ``uphill``; zero where that is zero."""
    norm = uphill.norm()
    return where(norm > 0, rho / norm, norm) * uphill
