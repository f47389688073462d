"""What takes gradients uphill and corrects a client's drift as well."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.averaging import sharp
from tests.algorithms.reference.corrected import Directions, feddyn, scaffold
from tests.algorithms.reference.setting import Gradient, Setting


def along(v: Array, rho: float) -> Array:
    """Of norm rho along v."""
    norm = np.linalg.norm(v)
    return rho * v / norm if norm > 0 else np.zeros_like(v)


def fedgamma(s: Setting, rho: float = 0.01, **fields: Any) -> Array:
    return scaffold(s, **fields, gradient=lambda i, x: sharp(rho))


def fedspeed(
    s: Setting,
    mu: float = 0.1,
    rho: float = 0.1,
    alpha: float = 1.0,
    normalised: bool = True,
    server: str = "all",
    server_lr: float = 1.0,
) -> Array:
    own = np.zeros((s.problem.population, len(s.x0)))

    def mixed(y: Array, g: Gradient) -> Array:
        here = g(y)
        uphill = g(y + (along(here, rho) if normalised else rho * here))
        return (1 - alpha) * here + alpha * uphill

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        def end(i: int) -> Array:
            return s.descend(i, t, x, lambda y, g: mixed(y, g) - own[i] + mu * (y - x))

        ends = {i: end(i) for i in cohort}
        for i, y in ends.items():
            own[i] -= mu * (y - x)
        if server == "all":
            return x - server_lr * s.delta(x, ends) - own.mean(axis=0) / mu
        amended = {i: y - own[i] / mu for i, y in ends.items()}
        return x - server_lr * s.delta(x, amended)

    return s.play(after)


def fedsmoo(
    s: Setting,
    alpha: float = 0.1,
    rho: float = 0.1,
    simplified: bool = False,
    server_lr: float = 1.0,
) -> Array:
    population = s.problem.population
    duals, ascents = np.zeros((2, population, len(s.x0)))
    agreed = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal agreed
        ends, sent = {}, {}
        for i in cohort:

            def direction(y: Array, g: Gradient, i: int = i) -> Array:
                e = along(g(y) - ascents[i] - agreed, rho)
                ascents[i] += e - agreed
                sent[i] = ascents[i].copy() if simplified else ascents[i] - e
                return g(y + e) - duals[i] + alpha * (y - x)

            ends[i] = s.descend(i, t, x, direction)
            duals[i] -= alpha * (ends[i] - x)
        agreed = along(np.mean(list(sent.values()), axis=0), rho)
        return x - server_lr * s.delta(x, ends) - duals.mean(axis=0) / alpha

    return s.play(after)


def lookout(rho: float) -> Directions:
    """The gradient uphill as seen in the models that a client received, this time and last time."""
    received: dict[int, Array] = {}

    def gradient(i: int, x: Array) -> Any:
        e = along(received.get(i, x) - x, rho)
        received[i] = x
        return lambda y, g: g(y + e)

    return gradient


def fedlesam(s: Setting, rho: float = 0.1, source: str = "own", server_lr: float = 1.0) -> Array:
    own, previous = lookout(rho), s.x0

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal previous
        e, previous = along(previous - x, rho), x

        def end(i: int) -> Array:
            direction = own(i, x) if source == "own" else lambda y, g: g(y + e)
            return s.descend(i, t, x, direction)

        return x - server_lr * s.delta(x, {i: end(i) for i in cohort})

    return s.play(after)


def fedlesam_s(s: Setting, rho: float = 0.1, **fields: Any) -> Array:
    return scaffold(s, **fields, gradient=lookout(rho))


def fedlesam_d(s: Setting, rho: float = 0.1, **fields: Any) -> Array:
    return feddyn(s, **fields, gradient=lookout(rho))
