"""MimeMom: Mime over SGD with momentum.

    server  x, m = 0                          client  nothing
    send    x, c, m
    step    y <- y - eta (g(y; b) - g(x; b) + c + beta m)
    finish  delta = x - y
    update  x <- x - eta_g mean(delta);  m <- beta m + c

c is the plain mean of the cohort's full gradients at x; for the form ema see Mime.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, algorithm 1. arXiv:2008.03606

Departures: Mime's.  The FedHBM paper, table 2, counts its traffic as three times FedAvg's.
"""

from dataclasses import dataclass

from hpcfl.algorithms.mime import Mime
from hpcfl.types import Decay


@dataclass(frozen=True, kw_only=True)
class MimeMom(Mime):
    """Mime (Karimireddy et al., 2021) over SGD with momentum."""

    beta: Decay = 0.9
    """Momentum factor."""
