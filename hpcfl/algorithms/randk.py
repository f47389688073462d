"""Rand-k: FedAvg whose clients send random entries of their movement, scaled up.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = P/k times k entries of x - y, drawn without replacement, k = ceil(ratio P)
    update  x <- x - eta_g mean(delta)

The mean of delta over the draws is x - y.  The draw follows from a key that the server knows, so
that no indices are sent.

Konecny, McMahan, Yu, Richtarik, Suresh, Bacon. Federated Learning: Strategies for Improving
Communication Efficiency. 2016, section 3 (subsampling). arXiv:1610.05492

Departures: entries are drawn from the whole vector, as many for each client.
"""

from dataclasses import dataclass
from typing import ClassVar

from hpcfl.algorithms.base import Message, Nothing, Upload
from hpcfl.algorithms.facts import Client, Draws
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.topk import count, kept
from hpcfl.types import Fraction, Vector


@dataclass(frozen=True, kw_only=True)
class RandK(FedAvg):
    """FedAvg with uploads of random entries (Konecny et al., 2016)."""

    client_draws: ClassVar[Draws] = {"mask": "uniform"}

    ratio: Fraction = 0.1
    """The share of the entries that are sent."""

    def finish(
        self, y: Vector, local: Message, message: Message, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        delta = message.x - y
        k = count(self.ratio, delta)
        return Upload(kept(delta, client.draws["mask"], k) * (delta.numel() / k)), state

    def up_bytes(self, upload: Upload) -> int:
        return count(self.ratio, upload.delta) * upload.delta.itemsize
