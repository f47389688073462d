"""Methods with a model for every client.

``models``, where it is given, is filled with the clients' own models after the last round.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.setting import Setting

Models = dict[int, Array]
Scales = Callable[[int, int, Array], Array | float]  # (K, k, which are personal) -> of the rate


def _which(personal: str | Sequence[str]) -> Array:
    """[15], whether each parameter is personal."""
    names = ["1.weight"] * 12 + ["1.bias"] * 3
    return np.array([isinstance(personal, str) or name in personal for name in names])


def _apart(
    s: Setting,
    personal: str | Sequence[str],
    server_lr: float,
    models: Models | None,
    scale: Scales = lambda K, k, own: 1.0,
) -> Array:
    own, kept = _which(personal), {} if models is None else models

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        for i in cohort:
            start, K = np.where(own, kept.get(i, s.x0), x), s.K(i)
            kept[i] = s.descend(i, t, start, scale=lambda k, K=K: scale(K, k, own))
        d = s.mean({i: np.where(own, 0.0, x - kept[i]) for i in cohort})
        return x - server_lr * d

    path = s.play(after)
    kept |= {i: np.where(own, model, path[-1]) for i, model in kept.items()}
    return path


def fedper(
    s: Setting,
    personal: str | Sequence[str] = "last",
    server_lr: float = 1.0,
    models: Models | None = None,
) -> Array:
    return _apart(s, personal, server_lr, models)


def fedbn(s: Setting, server_lr: float = 1.0, models: Models | None = None) -> Array:
    return _apart(s, ["1.bias"], server_lr, models)  # the normalisation layer of ``play.Shifted``


def fedrep(
    s: Setting,
    personal: str | Sequence[str] = "last",
    body: float = 0.1,
    server_lr: float = 1.0,
    models: Models | None = None,
) -> Array:
    def scale(K: int, k: int, own: Array) -> Array:
        return own if k < K - ceil(Fraction(str(body)) * K) else ~own

    return _apart(s, personal, server_lr, models, scale)


def ditto(
    s: Setting, lam: float = 1.0, server_lr: float = 1.0, models: Models | None = None
) -> Array:
    kept = {} if models is None else models

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        for i in cohort:
            v = kept.get(i, s.x0)
            for g in s.batches(i, t):
                v = v - s.eta(t) * (g(v) + lam * (v - x) + s.wd * v)
            kept[i] = v
        return x - server_lr * s.delta(x, {i: s.descend(i, t, x) for i in cohort})

    return s.play(after)
