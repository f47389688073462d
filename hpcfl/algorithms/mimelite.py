"""MimeLite: clients apply the server's fixed momentum, without Mime's correction.

    server  x, m = 0                          client  nothing
    send    x, and m where beta > 0
    step    y <- y - eta (g(y) + beta m)                  (heavy)
            y <- y - eta ((1 - beta) g(y) + beta m)       (ema)
    finish  delta = x - y,  grad f_i(x)
    update  x <- x - eta_g mean(delta);  c = plain mean(grad f_i(x))
            m <- beta m + c                               (heavy)
            m <- beta m + (1 - beta) c                    (ema)

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, algorithm 1. arXiv:2008.03606

Departures: Mime's.  At beta = 0 the model is FedAvg's, but full gradients are computed and sent.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from hpcfl.algorithms.facts import Client, Cohort, FullGradientScope, Grad
from hpcfl.algorithms.mime import Mime, MimeFramework
from hpcfl.types import Vector


class Upload(NamedTuple):
    delta: Vector
    grad: Vector  # of the client's mean loss over all its examples, at x


class MimeLiteFramework(MimeFramework):
    """MimeLite over the base optimiser of the class beside it."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"grad"})

    @property
    def full_gradient(self) -> FullGradientScope:
        """Each client's own."""
        return "client"

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        return server

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        return self.base_direction(grad(point), local, client), local

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        return Upload(message.x - y, client.full_grad), state

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return self.advance(server, mean.delta, mean.grad)


@dataclass(frozen=True, kw_only=True)
class MimeLite(MimeLiteFramework, Mime):
    """MimeLite (Karimireddy et al., 2021) over SGD."""
