"""QSGD: FedAvg whose clients round the entries of their movement at random to a few levels.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  v = x - y;  a = levels |v| / norm(v)
            delta = norm(v) sign(v) (floor(a) + [u < a - floor(a)]) / levels,  u uniform on [0, 1)
    update  x <- x - eta_g mean(delta)

The mean of delta over u is x - y.  A client sends norm(v), and for every entry a sign and a level.

Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD: Communication-Efficient SGD via Gradient Quantization
and Encoding. NeurIPS 2017, section 3.1. arXiv:1610.02132

Departures: a client's movement in a round is compressed, not a gradient, in one bucket.  Levels are
counted by their bits, without the paper's Elias coding.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import ones_like

from hpcfl.algorithms.base import Message, Nothing, Upload
from hpcfl.algorithms.facts import Client, Draws
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Count, Vector


@dataclass(frozen=True, kw_only=True)
class QSGD(FedAvg):
    """FedAvg with quantised uploads (Alistarh et al., 2017)."""

    client_draws: ClassVar[Draws] = {"rounding": "uniform"}

    levels: Count = 4
    """The levels above zero of an entry's magnitude."""

    def finish(
        self, y: Vector, local: Message, message: Message, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        v = message.x - y
        norm = v.norm()
        a = self.levels * v.abs() / norm.where(norm != 0, ones_like(norm))
        level = a.floor() + (client.draws["rounding"] < a - a.floor())
        return Upload(norm * v.sign() * level / self.levels), state

    def up_bytes(self, upload: Upload) -> int:
        bits = 1 + self.levels.bit_length()  # of the sign and of one of levels + 1 levels
        delta = upload.delta
        return delta.itemsize + -(-delta.numel() * bits // 8)
