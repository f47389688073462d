"""Top-k: FedAvg whose clients send the largest entries of their movement alone.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = the k entries of x - y that are largest in magnitude, k = ceil(ratio P)
    update  x <- x - eta_g mean(delta)

Of equal magnitudes the entry with the lower index is kept.  What is left out is forgotten: compare
EF21, which sends it later.

Aji, Heafield. Sparse Communication for Distributed Gradient Descent. EMNLP 2017. arXiv:1704.05021

Departures: a client's movement in a round is compressed, not a gradient, and over the whole vector;
in the paper a client keeps what it left out.
"""

from dataclasses import dataclass
from math import ceil

from torch import Tensor, zeros_like

from hpcfl.algorithms.base import Message, Nothing, Upload
from hpcfl.algorithms.facts import Client
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Fraction, Vector

INDEX_BYTES = 4  # of an entry's index, where the receiver does not know it


@dataclass(frozen=True, kw_only=True)
class TopK(FedAvg):
    """FedAvg with uploads of the largest entries (Aji and Heafield, 2017)."""

    ratio: Fraction = 0.1
    """The share of the entries that are sent."""

    def finish(
        self, y: Vector, local: Message, message: Message, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        delta = message.x - y
        return Upload(kept(delta, delta.abs(), count(self.ratio, delta))), state

    def up_bytes(self, upload: Upload) -> int:
        return count(self.ratio, upload.delta) * (upload.delta.itemsize + INDEX_BYTES)


def count(ratio: float, v: Vector) -> int:
    """k, the entries of ``v`` that are sent."""
    # Rounded first: 0.07 x 100 is 7.000000000000001 in floating point.
    return max(1, ceil(round(ratio * v.numel(), 6)))


def kept(v: Vector, by: Tensor, k: int) -> Vector:
    """``v`` where ``by`` is among its k largest, a tie to the lower index; 0 elsewhere."""
    chosen = by.argsort(descending=True, stable=True)[:k]
    return zeros_like(v).scatter(0, chosen, v.gather(0, chosen))
