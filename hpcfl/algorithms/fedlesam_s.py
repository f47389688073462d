"""FedLESAM-S: SCAFFOLD along FedLESAM's gradients.

    server  x, c = 0                          client i  c_i = 0, z_i = none
    send    x, c
    begin   e = rho (z_i - x) / norm(z_i - x);  0 while z_i = none
    step    y <- y - eta (g(y + e) - c_i + c)
    finish  c_i+ = c_i - c + (x - y) / (K eta);  dc = c_i+ - c_i;  z_i <- x
    update  x <- x - eta_g mean(x - y);  c <- c + |S|/N mean(dc)

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than
Local Perturbations for Federated Sharpness-aware Minimization. ICML 2024.
arXiv:2405.18890

Departures: FedLESAM's and SCAFFOLD's; ``option`` 1 and ``first`` are SCAFFOLD's.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcfl.algorithms.facts import Client, Grad, RandomInit
from hpcfl.algorithms.fedlesam import estimated_ascent
from hpcfl.algorithms.scaffold import Scaffold, Server, Upload
from hpcfl.types import NonNegative, Scalar, Vector


class State(NamedTuple):
    c: Vector  # c_i, this client's control variate
    anchor: Vector  # z_i, the model that this client received the last time
    known: Scalar  # 0-d, 1 once it has taken part, else 0


class Local(NamedTuple):
    correction: Vector  # c - c_i
    ascent: Vector  # e


@dataclass(frozen=True, kw_only=True)
class FedLESAMS(Scaffold):
    """FedLESAM-S (Fan et al., 2024)."""

    rho: NonNegative = 0.1
    """Radius of the ascent."""

    def init_client(self, x0: Vector, random_init: RandomInit, grad: Vector | None = None) -> Any:
        first = super().init_client(x0, random_init, grad)
        return State(first.c, x0, known=x0.new_zeros(()))

    def begin(self, message: Server, state: Any, client: Client) -> Any:
        correction = message.c - state.c
        return Local(correction, estimated_ascent(message.x, state, self.rho))

    def gradient(self, point: Vector, local: Any, grad: Grad) -> Vector:
        return grad(point + local.ascent)

    def finish(
        self, y: Vector, local: Any, message: Server, state: Any, client: Client
    ) -> tuple[Upload, Any]:
        upload, after = super().finish(y, local, message, state, client)
        return upload, State(after.c, message.x, state.known.new_ones(()))
