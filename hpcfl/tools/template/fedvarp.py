"""FedVARP: absent clients are stood in for by the last update that they sent.

    server  x, h = 0                          client i  v_i = 0
    send    x
    step    y <- y - eta g(y)
    finish  news = (x - y) - v_i;  v_i+ = memory (x - y);  change = v_i+ - v_i
    update  x <- x - eta_g (mean(news) + h);  h <- h + |S|/N mean(change)

Jhunjhunwala, Sharma, Nagarkatti, Joshi. UAI 2022. arXiv:2207.14130

Departures: memory is ours (1 there).  The mean of change is plain even where that of news is
weighted by examples, so that h stays the mean of all v_i; the paper has equal weights.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import zeros_like

from hpcfl import Algorithm, Client, Cohort, Message, RandomInit
from hpcfl.types import Share, Vector


class Server(NamedTuple):
    x: Vector
    h: Vector  # the mean of all clients' v_i


class State(NamedTuple):
    v: Vector  # v_i, what this client sent last, times memory


class Upload(NamedTuple):
    news: Vector
    change: Vector  # of v_i


@dataclass(frozen=True, kw_only=True)
class FedVARP(Algorithm):
    """FedVARP (Jhunjhunwala et al., 2022)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"change"})
    not_transmitted: ClassVar[frozenset[str]] = frozenset({"change"})

    memory: Share = 1.0
    """How much of its last update stands in for a client that is absent."""

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, h=zeros_like(x0))

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(v=zeros_like(x0))

    def finish(
        self, y: Vector, local: Message, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        delta = message.x - y
        v = self.memory * delta
        return Upload(news=delta - state.v, change=v - state.v), State(v)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(
            x=server.x - self.server_lr * (mean.news + server.h),
            h=server.h + cohort.size / cohort.population * mean.change,
        )
