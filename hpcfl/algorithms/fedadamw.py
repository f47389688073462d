"""FedAdamW: clients step by AdamW, from the last round's second moments and along its direction.

    server  x, vbar = 0, Delta = 0            client  nothing
    send    x, vbar, Delta
    begin   m = 0, v = vbar; vbar is one mean for each parameter of the model (v: mean), or whole
    step    m <- b1 m + (1 - b1) g(y);  v <- b2 v + (1 - b2) g(y)^2,  k = 1, ... K_i
            d = m / (1 - b1^k) / (sqrt(v / (1 - b2^(t K_i + k))) + eps)
            y <- y - eta (d + alpha Delta)
    finish  delta = x - y, and v
    update  x <- x - eta_g mean(delta);  vbar <- mean(v);  Delta <- mean(delta / (eta K_i))

Liu, Shang, Liu, Tian, Liu, Liu, Zhu, Lin. FedAdamW: A Communication-Efficient Optimizer with
Convergence and Generalization Guarantees for Federated Large Models. AAAI 2026. arXiv:2510.27486

Departures: the weight decay is subtracted (the paper prints a plus).  One mean for each tensor,
where the paper divides those of an attention layer further.  Each K_i is the client's own.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Nothing
from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad
from hpcfl.types import Decay, NonNegative, Vector


class Server(NamedTuple):
    x: Vector
    v: Vector  # vbar: [number of parameters], or [P]
    momentum: Vector  # Delta


class Local(NamedTuple):
    m: Vector
    v: Vector
    momentum: Vector  # Delta


class Upload(NamedTuple):
    delta: Vector
    v: Vector
    gradient: Vector  # delta / (eta K)


@dataclass(frozen=True, kw_only=True)
class FedAdamW(Algorithm):
    """FedAdamW (Liu et al., 2026)."""

    not_transmitted: ClassVar[frozenset[str]] = frozenset({"gradient"})

    alpha: NonNegative = 0.5
    """Weight of the last round's direction."""
    b1: Decay = 0.9
    """Decay of the first moment."""
    b2: Decay = 0.999
    """Decay of the second moment."""
    eps: NonNegative = 1e-8
    """Added to the root of the second moment."""
    v: Literal["mean", "full"] = "mean"
    """What of the second moments is sent: a mean for each tensor of the model, or all."""
    running: bool = False
    """Correct the first moment by the running number of steps too, as the authors' code does."""

    def resolve(self, facts: Facts) -> Self:
        facts.require_plain_sgd("its local steps are AdamW's")
        facts.require_one_rate("its Delta divides x - y by eta K")
        return self

    def init_server(self, x0: Vector) -> Server:
        return Server(x0, self._sent(zeros_like(x0)), zeros_like(x0))

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        return server

    def begin(self, message: Server, state: Nothing, client: Client) -> Local:
        v = message.v if self.v == "full" else self.layout.spread(message.v)
        return Local(zeros_like(message.x), v, message.momentum)

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        g = grad(point)
        m = self.b1 * local.m + (1 - self.b1) * g
        v = self.b2 * local.v + (1 - self.b2) * g * g
        own = client.step + 1
        running = client.round * client.steps + own
        first = m / (1 - self.b1 ** (running if self.running else own))
        second = v / (1 - self.b2**running)
        d = first / (second.sqrt() + self.eps) + self.alpha * local.momentum
        return d, Local(m, v, local.momentum)

    def finish(
        self, y: Vector, local: Local, message: Server, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        delta = message.x - y
        return Upload(delta, self._sent(local.v), delta / (client.lr * client.steps)), state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(server.x - self.server_lr * mean.delta, mean.v, mean.gradient)

    def _sent(self, v: Vector) -> Vector:
        """What is sent of second moments."""
        return v if self.v == "full" else self.layout.means(v)
