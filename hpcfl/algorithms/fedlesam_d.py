"""FedLESAM-D: FedDyn along FedLESAM's gradients.

    server  x, h = 0                          client i  l_i = 0, z_i = none
    send    x
    begin   e = rho (z_i - x) / norm(z_i - x);  0 while z_i = none
    step    y <- y - eta (g(y + e) - l_i + alpha (y - x))
    finish  l_i <- l_i - alpha (y - x);  z_i <- x
    update  h <- h - (alpha / N) sum (y_i - x)
            x <- (x - eta_g mean(x - y_i)) - h / alpha

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than
Local Perturbations for Federated Sharpness-aware Minimization. ICML 2024.
arXiv:2405.18890

Departures: FedLESAM's and FedDyn's.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Message
from hpcfl.algorithms.facts import Client, Grad, RandomInit
from hpcfl.algorithms.feddyn import FedDyn, Upload
from hpcfl.algorithms.fedlesam import estimated_ascent
from hpcfl.types import NonNegative, Scalar, Vector


class State(NamedTuple):
    l: Vector  # noqa: E741  # l_i, the dual of this client
    anchor: Vector  # z_i, the model that this client received the last time
    known: Scalar  # 0-d, 1 once it has taken part, else 0


class Local(NamedTuple):
    x: Vector
    l: Vector  # noqa: E741
    ascent: Vector  # e


@dataclass(frozen=True, kw_only=True)
class FedLESAMD(FedDyn):
    """FedLESAM-D (Fan et al., 2024)."""

    rho: NonNegative = 0.1
    """Radius of the ascent."""

    def init_client(self, x0: Vector, random_init: RandomInit) -> Any:
        return State(zeros_like(x0), x0, known=x0.new_zeros(()))

    def begin(self, message: Message, state: Any, client: Client) -> Any:
        return Local(message.x, state.l, estimated_ascent(message.x, state, self.rho))

    def gradient(self, point: Vector, local: Any, grad: Grad) -> Vector:
        return grad(point + local.ascent)

    def finish(
        self, y: Vector, local: Any, message: Message, state: Any, client: Client
    ) -> tuple[Upload, Any]:
        upload, after = super().finish(y, local, message, state, client)
        return upload, State(after.l, message.x, state.known.new_ones(()))
