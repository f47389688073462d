"""FedLESAM: clients take their gradient uphill, as seen in the movement of the global model.

    server  x                                 client i  z_i = none
    send    x                                                  (x, x' for source: previous)
    begin   e = rho (z_i - x) / norm(z_i - x);  0 while z_i = none
            e = rho (x' - x) / norm(x' - x)                    (source: previous)
    step    y <- y - eta g(y + e)
    finish  delta = x - y;  z_i <- x
    update  x <- x - eta_g mean(delta);  x' is the model before the last round

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than
Local Perturbations for Federated Sharpness-aware Minimization. ICML 2024.
arXiv:2405.18890

Departures: ``source: previous`` is the authors' code, which also divides by the sum of the tensors'
norms; here norms are over all parameters.  Where the model has not moved, e is zero.  eta_g is ours
(1 there).
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hpcfl.algorithms.base import Algorithm, Nothing, Upload
from hpcfl.algorithms.facts import Client, Cohort, Grad, RandomInit
from hpcfl.algorithms.fedsam import ascent
from hpcfl.algorithms.localghb import State
from hpcfl.types import NonNegative, Vector


class Server(NamedTuple):
    """Also the message."""

    x: Vector
    past: tuple[Vector, ...]  # x' for source previous


class Local(NamedTuple):
    ascent: Vector  # e


@dataclass(frozen=True, kw_only=True)
class FedLESAM(Algorithm):
    """FedLESAM (Fan et al., 2024)."""

    rho: NonNegative = 0.1
    """Radius of the ascent."""
    source: Literal["own", "previous"] = "own"
    """The older model: the one that the client received last, or that of the last round."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x0, (x0,) if self.source == "previous" else ())

    def init_client(self, x0: Vector, random_init: RandomInit) -> State | Nothing:
        return State(x0, x0.new_zeros(())) if self.source == "own" else Nothing()

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: Any, client: Client) -> Local:
        if self.source == "own":
            return Local(estimated_ascent(message.x, state, self.rho))
        return Local(ascent(message.past[0] - message.x, self.rho))

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        return grad(point + local.ascent), local

    def finish(
        self, y: Vector, local: Local, message: Server, state: Any, client: Client
    ) -> tuple[Upload, Any]:
        upload = Upload(message.x - y)
        if self.source == "own":
            return upload, State(message.x, state.known.new_ones(()))
        return upload, state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        x = server.x - self.server_lr * mean.delta
        return Server(x, (server.x,) if self.source == "previous" else ())


def estimated_ascent(x: Vector, state: Any, rho: float) -> Vector:
    """e, from the model that the client received last: ``anchor`` of its state, if ``known``."""
    e: Vector = state.known * ascent(state.anchor - x, rho)
    return e
