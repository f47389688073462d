"""The references that federated training is held against."""

from collections.abc import Sequence

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.setting import Setting


def centralized(s: Setting, beta: float = 0.9, server_lr: float = 1.0) -> Array:
    """SGD with momentum and the decay inside it; v is kept from round to round."""
    v = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal v
        (only,) = cohort
        y = x
        for g in s.batches(only, t):
            v = beta * v + g(y) + s.wd * y
            y = y - s.eta(t) * v
        return x - server_lr * (x - y)

    return s.play(after)


def server_only(
    s: Setting,
    optimizer: str = "sgd",
    beta: float = 0.9,
    b1: float = 0.9,
    b2: float = 0.999,
    tau: float = 1e-8,
    server_lr: float = 1.0,
) -> Array:
    """G = sum p_i mean_k g(x; b_k) + wd x"""
    m, v = np.zeros_like(s.x0), np.zeros_like(s.x0)
    past = None  # the model before the last round

    def large_batch(t: int, cohort: Sequence[int], y: Array) -> Array:
        g = s.mean({i: np.mean([g(y) for g in s.batches(i, t)], axis=0) for i in cohort})
        return g + s.wd * y

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal m, v, past
        g = large_batch(t, cohort, x)
        step = server_lr * s.eta(t)
        if optimizer == "mvr":
            m = g if past is None else g + beta * (m - large_batch(t, cohort, past))
            past = x
            return x - step * m
        if optimizer == "sgd":
            return x - step * g
        if optimizer == "momentum":
            m = beta * m + g
            return x - step * m
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        first, second = m / (1 - b1 ** (t + 1)), v / (1 - b2 ** (t + 1))
        return x - step * first / (np.sqrt(second) + tau)

    return s.play(after)
