"""FedSMOO: FedDyn along gradients taken uphill, the ascents of all clients aligned by duals.

    server  x, h = 0, s = 0                   client i  l_i = 0, m_i = 0
    send    x, s
    step    u = g(y) - m_i - s,  e = rho u / norm(u);  m_i <- m_i + e - s
            y <- y - eta (g(y + e) - l_i + alpha (y - x)), both on the same batch
    finish  l_i <- l_i - alpha (y - x)
            w_i = m_i - e of the last step, or m_i                        (simplified)
    update  h <- h - (alpha / N) sum (y_i - x);  x <- x - eta_g mean(x - y_i) - h / alpha
            s <- rho w / norm(w),  w = mean(w_i)

Sun, Shen, Chen, Ding, Tao. Dynamic Regularized Sharpness Aware Minimization in Federated Learning:
Approaching Global Consistency and Smooth Landscape. ICML 2023. arXiv:2305.11584

Departures: FedDyn's; alpha is the paper's 1 / beta.  w is a plain mean, whatever the job's weights
are.  ``simplified`` is in the authors' code.  Where u or w is zero, e or s is zero.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import zeros_like

from hpcfl.algorithms.facts import Client, Cohort, Grad, RandomInit
from hpcfl.algorithms.feddyn import FedDyn
from hpcfl.algorithms.fedsam import ascent
from hpcfl.types import NonNegative, Vector


class Server(NamedTuple):
    x: Vector
    h: Vector  # the mean of all clients' l_i
    s: Vector  # the ascent that the clients agree on


class Message(NamedTuple):
    x: Vector
    s: Vector


class State(NamedTuple):
    l: Vector  # noqa: E741  # l_i, the dual of the model
    m: Vector  # m_i, the dual of the ascent


class Local(NamedTuple):
    x: Vector
    l: Vector  # noqa: E741
    m: Vector
    s: Vector
    e: Vector  # the ascent of the last step


class Upload(NamedTuple):
    delta: Vector
    moved: Vector  # delta again, for its plain mean
    w: Vector


@dataclass(frozen=True, kw_only=True)
class FedSMOO(FedDyn):
    """FedSMOO (Sun et al., 2023)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"moved", "w"})

    rho: NonNegative = 0.1
    """Radius of the ascent."""
    simplified: bool = False
    """Send the dual m_i of the ascent without taking off the last ascent."""

    def init_server(self, x0: Vector) -> Any:
        return Server(x0, zeros_like(x0), zeros_like(x0))

    def init_client(self, x0: Vector, random_init: RandomInit) -> Any:
        return State(zeros_like(x0), zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Any:
        return Message(server.x, server.s)

    def begin(self, message: Any, state: Any, client: Client) -> Any:
        return Local(message.x, state.l, state.m, message.s, e=zeros_like(message.x))

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        e = ascent(grad(point) - local.m - local.s, self.rho)
        d = grad(point + e) - local.l + self.alpha * (point - local.x)
        return d, local._replace(m=local.m + e - local.s, e=e)

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        sent, after = super().finish(y, local, message, state, client)
        w = local.m if self.simplified else local.m - local.e
        return Upload(*sent, w), State(after.l, local.m)

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return Server(*super().update(server, mean, cohort), ascent(mean.w, self.rho))
