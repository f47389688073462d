"""FedSpeed: FedDyn's local steps along a gradient taken uphill, mixed with that at the point.

    server  x, h = 0                          client i  l_i = 0
    send    x
    step    g1 = g(y),  g2 = g(y + rho g1 / norm(g1)), both on the same batch
            y <- y - eta ((1 - alpha) g1 + alpha g2 - l_i + mu (y - x))
    finish  l_i <- l_i - mu (y - x)
    update  h <- h - (mu / N) sum (y_i - x)
            x <- x - eta_g mean(x - y_i) - h / mu                         (server: all)
            x <- x - eta_g mean(x - y_i + l_i / mu) with the new l_i      (server: cohort)

With ``normalised: false`` g2 = g(y + rho g1).

Sun, Shen, Huang, Ding, Tao. FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy. ICLR 2023. arXiv:2302.10429

Departures: mu is the paper's 1 / lambda.  ``server: all``, as in the authors' code, takes the mean
of all clients' l_i, as FedDyn does; the paper's server, which knows those of the cohort alone, is
``server: cohort``.  The sum of h is plain, and eta_g is ours (1 there).  Where the gradient is zero
there is no ascent.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Message
from hpcfl.algorithms.facts import Client, Cohort, Grad, RandomInit
from hpcfl.algorithms.feddyn import Local, Server, State, Upload
from hpcfl.algorithms.fedsam import ascent
from hpcfl.types import NonNegative, Positive, Share, Vector


@dataclass(frozen=True, kw_only=True)
class FedSpeed(Algorithm):
    """FedSpeed (Sun et al., 2023)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"moved"})
    not_transmitted: ClassVar[frozenset[str]] = frozenset({"moved"})

    mu: Positive = 0.1
    """Weight of the proximal term, the paper's 1 / lambda."""
    rho: NonNegative = 0.1
    """Radius of the ascent; its rate if it is not normalised."""
    alpha: Share = 1.0
    """Weight of the gradient uphill."""
    normalised: bool = True
    """Ascend by rho along the gradient, instead of by rho times the gradient."""
    server: Literal["all", "cohort"] = "all"
    """The clients whose l_i enter the server's step."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, h=zeros_like(x0))

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Message:
        return Message(server.x)

    def begin(self, message: Message, state: State, client: Client) -> Local:
        return Local(message.x, state.l)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        here = grad(point)
        step = ascent(here, self.rho) if self.normalised else self.rho * here
        mixed = (1 - self.alpha) * here + self.alpha * grad(point + step)
        return mixed - local.l + self.mu * (point - local.x), local

    def finish(
        self, y: Vector, local: Local, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        moved = message.x - y
        l = state.l + self.mu * moved  # noqa: E741
        return Upload(moved if self.server == "all" else moved + l / self.mu, moved), State(l)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        h = server.h + self.mu * cohort.size / cohort.population * mean.moved
        x = server.x - self.server_lr * mean.delta
        return Server(x - h / self.mu if self.server == "all" else x, h)
