"""MimeLiteAdam: MimeLite over Adam; MimeAdam without its correction.

    server  x, m = 0, v = v0                  client  nothing
    send    x, m, v
    step    m' = (1 - b1) g(y) + b1 m
            y <- y - eta m' / (sqrt(v) + eps)                                     (fixed)
            v' = (1 - b2) g(y)^2 + b2 v                                           (optimizer)
            y <- y - eta m'/(1 - b1^(t+1)) / (sqrt(v'/(1 - b2^(t+1))) + eps)
    finish  delta = x - y,  grad f_i(x)
    update  x <- x - eta_g mean(delta);  c = plain mean(grad f_i(x))
            m <- (1 - b1) c + b1 m,  v <- (1 - b2) c^2 + b2 v

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the Centralized Barrier for
Cross-Device Federated Learning. NeurIPS 2021, algorithm 1. arXiv:2008.03606

Departures: MimeAdam's.
"""

from dataclasses import dataclass

from hpcfl.algorithms.mimeadam import MimeAdam
from hpcfl.algorithms.mimelite import MimeLiteFramework


@dataclass(frozen=True, kw_only=True)
class MimeLiteAdam(MimeLiteFramework, MimeAdam):
    """MimeLite (Karimireddy et al., 2021) over Adam."""
