"""AdaBest: estimates of client drift that decay with a client's absence.

    server  x, xbar = x                       client i  h_i = 0, t_i = 0
    send    x
    step    y <- y - eta (g(y) - h_i)
    finish  h_i <- h_i / (t - t_i) + mu (x - y);  t_i <- t
    update  xbar+ = x - eta_g mean(x - y)
            x <- xbar+ - beta (xbar - xbar+);  xbar <- xbar+

Rounds t are counted from one here.

Varno, Saghayi, Rafiee Sevyeri, Gupta, Matwin, Havaei. AdaBest: Minimizing Client Drift in
Federated Learning via Adaptive Bias Estimation. ECCV 2022, algorithm 1. arXiv:2204.13170

Departures: the server's learning rate eta_g is ours (1 in the paper).
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import int64, zeros_like

from hpcfl.algorithms.base import Algorithm, Message, Upload
from hpcfl.algorithms.facts import Client, Cohort, Grad, RandomInit
from hpcfl.types import NonNegative, Scalar, Share, Vector


class Server(NamedTuple):
    x: Vector
    xbar: Vector  # the last mean of the clients' models


class State(NamedTuple):
    h: Vector  # h_i, the estimate of this client's drift
    seen: Scalar  # t_i, its last round, counted from one; 0 before the first (int64)


@dataclass(frozen=True, kw_only=True)
class AdaBest(Algorithm):
    """AdaBest (Varno et al., 2022)."""

    mu: NonNegative = 0.02
    """Weight of x - y in the client's new estimate."""
    beta: Share = 0.9
    """Factor of the extrapolation from the last mean of the clients' models."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, xbar=x0)

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(h=zeros_like(x0), seen=x0.new_zeros((), dtype=int64))

    def begin(self, message: Message, state: State, client: Client) -> State:
        return state

    def direction(
        self, point: Vector, local: State, grad: Grad, client: Client
    ) -> tuple[Vector, State]:
        return grad(point) - local.h, local

    def finish(
        self, y: Vector, local: State, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        delta, now = message.x - y, client.round.to(int64) + 1
        return Upload(delta), State(state.h / (now - state.seen) + self.mu * delta, now)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        xbar = server.x - self.server_lr * mean.delta
        return Server(xbar - self.beta * (server.xbar - xbar), xbar)
