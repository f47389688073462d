"""MimeLiteAdam: MimeLite over Adam; MimeAdam without its correction.

    server  x, m = 0, v = v0                  client  nothing
    send    x, m, v
    step    m' = (1 - b1) g(y) + b1 m
            y <- y - eta m' / (sqrt(v) + eps)                                     (fixed)
            v' = (1 - b2) g(y)^2 + b2 v                                           (optimizer)
            y <- y - eta m'/(1 - b1^(t+1)) / (sqrt(v'/(1 - b2^(t+1))) + eps)
    finish  delta = x - y,  grad f_i(x)
    update  x <- x - eta_g mean(delta);  c = plain mean(grad f_i(x))
            m <- (1 - b1) c + b1 m,  v <- (1 - b2) c^2 + b2 v

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, algorithm 1. arXiv:2008.03606

Departures: MimeAdam's.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hpcfl.algorithms.base import Client, Cohort, FullGradientScope, Grad, Nothing
from hpcfl.algorithms.mimeadam import MimeAdam, Server
from hpcfl.algorithms.mimelite import Upload
from hpcfl.types import Vector


@dataclass(frozen=True, kw_only=True)
class MimeLiteAdam(MimeAdam):
    """MimeLite (Karimireddy et al., 2021) over Adam."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"grad"})

    @property
    def full_gradient(self) -> FullGradientScope:
        """Each client's own."""
        return "client"

    def direction(self, point: Vector, local: Server, grad: Grad, client: Client) -> Vector:
        return self.adam(grad(point), local, client.round)

    def finish(
        self, y: Vector, local: Server, message: Server, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        return Upload(message.x - y, client.full_grad), state

    def update(self, server: Server, mean: Any, cohort: Cohort) -> Server:
        return self.advance(server, mean.delta, mean.grad)
