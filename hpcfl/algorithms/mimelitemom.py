"""MimeLiteMom: MimeLite over SGD with momentum.

    server  x, m = 0                          client  nothing
    send    x, m
    step    y <- y - eta (g(y) + beta m)
    finish  delta = x - y,  grad f_i(x)
    update  x <- x - eta_g mean(delta);  m <- beta m + plain mean(grad f_i(x))

For the form ema see MimeLite.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, algorithm 1. arXiv:2008.03606

Departures: Mime's.
"""

from dataclasses import dataclass

from hpcfl.algorithms.mimelite import MimeLite
from hpcfl.types import Decay


@dataclass(frozen=True, kw_only=True)
class MimeLiteMom(MimeLite):
    """MimeLite (Karimireddy et al., 2021) over SGD with momentum."""

    beta: Decay = 0.9
    """Momentum factor."""
