"""EF21: clients send the largest entries of what their movement differs from what they sent.

    server  x, g = 0                          client i  g_i = 0
    send    x
    step    y <- y - eta g(y)
    finish  q = the k entries of (x - y) - g_i that are largest in magnitude, k = ceil(ratio P)
            g_i <- g_i + q
    update  g <- g + |S|/N mean(q);  x <- x - eta_g g

g is the mean of all clients' g_i: those that are absent count with the one that they have.

Richtarik, Sokolov, Fatkhullin. EF21: A New, Simpler, Theoretically Better, and Practically Faster
Error Feedback. NeurIPS 2021, algorithm 2. arXiv:2106.05203

Departures: x - y of a round stands for the gradient.  The mean is plain, whatever the job's weights
are.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Message
from hpcfl.algorithms.facts import Client, Cohort, RandomInit
from hpcfl.algorithms.topk import INDEX_BYTES, count, kept
from hpcfl.types import Fraction, Vector


class Server(NamedTuple):
    x: Vector
    g: Vector  # the mean of all clients' g_i


class State(NamedTuple):
    g: Vector  # g_i, the sum of what this client sent


class Upload(NamedTuple):
    change: Vector  # of g_i


@dataclass(frozen=True, kw_only=True)
class EF21(Algorithm):
    """EF21 (Richtarik et al., 2021)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"change"})

    ratio: Fraction = 0.1
    """The share of the entries that are sent."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, g=zeros_like(x0))

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(zeros_like(x0))

    def finish(
        self, y: Vector, local: Message, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        left = message.x - y - state.g
        change = kept(left, left.abs(), count(self.ratio, left))
        return Upload(change), State(state.g + change)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        g = server.g + cohort.size / cohort.population * mean.change
        return Server(x=server.x - self.server_lr * g, g=g)

    def up_bytes(self, upload: Upload) -> int:
        return count(self.ratio, upload.change) * (upload.change.itemsize + INDEX_BYTES)
