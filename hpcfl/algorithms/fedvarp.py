"""FedVARP: absent clients are stood in for by the last update that they sent.

    server  x, u = 0                          client i  u_i = 0
    send    x
    step    y <- y - eta g(y)
    finish  change = (x - y) - u_i;  u_i <- x - y
    update  x <- x - eta_g (mean(change) + u);  u <- u + |S|/N mean(change)

Jhunjhunwala, Sharma, Nagarkatti, Joshi. FedVARP: Tackling the Variance Due to Partial Client
Participation in Federated Learning. UAI 2022. arXiv:2207.14130

Departures: u_i is kept with the client, which sends the change of it; in the paper the server keeps
every u_i.  Both means are plain, whatever the job's weights are.  The paper divides x - y by
the local learning rate, which is the same where that is constant.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import zeros_like

from hpcfl.algorithms.base import Algorithm, Message
from hpcfl.algorithms.facts import Client, Cohort, RandomInit
from hpcfl.types import Vector


class Server(NamedTuple):
    x: Vector
    u: Vector  # the mean of all clients' u_i


class State(NamedTuple):
    u: Vector  # u_i, this client's last x - y


class Upload(NamedTuple):
    change: Vector  # of u_i


@dataclass(frozen=True, kw_only=True)
class FedVARP(Algorithm):
    """FedVARP (Jhunjhunwala et al., 2022)."""

    unweighted: ClassVar[frozenset[str]] = frozenset({"change"})

    def init_server(self, x0: Vector) -> Server:
        return Server(x=x0, u=zeros_like(x0))

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(zeros_like(x0))

    def finish(
        self, y: Vector, local: Message, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        delta = message.x - y
        return Upload(delta - state.u), State(delta)

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        return Server(
            x=server.x - self.server_lr * (mean.change + server.u),
            u=server.u + cohort.size / cohort.population * mean.change,
        )
