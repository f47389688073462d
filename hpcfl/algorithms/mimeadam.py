"""MimeAdam: Mime over Adam; clients step with the server's moments, which are fixed in a round.

    server  x, m = 0, v = v0                  client  nothing
    first   grad f_i(x) of every client of the cohort;  c = their plain mean
    send    x, c, m, v
    step    G = g(y; b) - g(x; b) + c,  m' = (1 - b1) G + b1 m
            y <- y - eta m' / (sqrt(v) + eps)                                     (fixed)
            v' = (1 - b2) G^2 + b2 v                                              (optimizer)
            y <- y - eta m'/(1 - b1^(t+1)) / (sqrt(v'/(1 - b2^(t+1))) + eps)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)
            m <- (1 - b1) c + b1 m,  v <- (1 - b2) c^2 + b2 v

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, algorithm 1. arXiv:2008.03606

Departures: the form ``optimizer``, one whole step of Adam whose new moments are discarded,
follows the public implementations in FedJAX and TFF.  The server's learning rate eta_g is ours (1
there).  With v0 = 0 the first round of the form ``fixed`` divides by eps alone.  Unsure: that
this form divides by the v of before the step is our reading of the paper's table of U and V, and
the defaults of b2 and eps are from others who quote it.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import full_like, zeros_like

from hpcfl.algorithms.facts import Client, Cohort
from hpcfl.algorithms.mime import MimeFramework
from hpcfl.types import Decay, NonNegative, Positive, Vector


class Server(NamedTuple):
    x: Vector
    m: Vector  # decaying mean of the cohorts' gradients
    v: Vector  # decaying mean of their squares


class Message(NamedTuple):
    x: Vector
    c: Vector  # the mean gradient of the cohort
    m: Vector
    v: Vector


@dataclass(frozen=True, kw_only=True)
class MimeAdam(MimeFramework):
    """Mime (Karimireddy et al., 2021) over Adam."""

    b1: Decay = 0.9
    """Decay of m."""
    b2: Decay = 0.99
    """Decay of v."""
    eps: Positive = 1e-3
    """Added to the square root of v."""
    v0: NonNegative = 0.0
    """v before the first round, in every coordinate.  With 0 the form fixed divides by eps alone
    in round 1, so the eps of 1e-3 makes its steps a thousand times as long."""
    form: Literal["fixed", "optimizer"] = "fixed"
    """fixed: local steps divide by the root of the server's v; optimizer: each is a whole step of
    Adam, whose v has its own gradient too."""
    bias_correction: bool | None = None
    """Divide the moments by 1 - b^(t+1), as Adam does; by default in form optimizer, form fixed has
    none."""

    def __post_init__(self) -> None:
        if self.form == "fixed" and self.bias_correction:
            raise ValueError("bias_correction: form fixed has none; set form: optimizer")

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, m=zeros_like(x0), v=full_like(x0, self.v0))

    def broadcast(self, server: Server, cohort: Cohort) -> Message:
        return Message(server.x, cohort.grads[0], server.m, server.v)

    def base_direction(self, gradient: Vector, server: Server, client: Client) -> Vector:
        m, v = self.moments(gradient, server)
        if self.form == "fixed":
            return m / (server.v.sqrt() + self.eps)
        if self.bias_correction is not False:
            count = client.round + 1
            m, v = m / (1 - self.b1**count), v / (1 - self.b2**count)
        return m / (v.sqrt() + self.eps)

    def moments(self, gradient: Vector, server: Server) -> tuple[Vector, Vector]:
        """Both moments with one more gradient."""
        return (
            (1 - self.b1) * gradient + self.b1 * server.m,
            (1 - self.b2) * gradient * gradient + self.b2 * server.v,
        )

    def advance(self, server: Server, delta: Vector, c: Vector) -> Server:
        return Server(server.x - self.server_lr * delta, *self.moments(c, server))
