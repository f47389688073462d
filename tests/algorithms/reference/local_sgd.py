"""DiLoCo, SlowMo and Streaming DiLoCo, with the clients' plain SGD."""

from collections.abc import Sequence

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.setting import Setting

PARTS = {"1.weight": slice(0, 12), "1.bias": slice(12, 15)}  # of the linear model


def diloco(s: Setting, beta: float = 0.9, server_lr: float = 0.7) -> Array:
    v = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal v
        d = s.delta(x, {i: s.descend(i, t, x) for i in cohort})
        v = beta * v + d
        return x - server_lr * (d + beta * v)

    return s.play(after)


def slowmo(s: Setting, beta: float = 0.7, server_lr: float = 1.0) -> Array:
    u = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal u
        u = beta * u + s.delta(x, {i: s.descend(i, t, x) for i in cohort}) / s.eta(t)
        return x - server_lr * s.eta(t) * u

    return s.play(after)


def streaming_diloco(
    s: Setting,
    fragments: int | Sequence[Sequence[str]],
    delay: int = 1,
    alpha: float = 0.5,
    beta: float = 0.9,
    server_lr: float = 0.7,
) -> Array:
    """``fragments``: 1, 2 (the weights and the biases), or lists of their names."""
    given = {1: [list(PARTS)], 2: [[name] for name in PARTS]}
    named = given[fragments] if isinstance(fragments, int) else fragments
    places = [np.concatenate([np.r_[PARTS[name]] for name in names]) for names in named]
    ys = [s.x0.copy() for _ in range(s.problem.population)]
    v = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        for i in cohort:
            y, velocity = ys[i].copy(), np.zeros_like(x)
            for k, g in enumerate(s.batches(i, t)):
                if t > 0 and k == delay:
                    f = places[(t - 1) % len(places)]
                    y[f] = alpha * y[f] + (1 - alpha) * x[f]
                d = g(y) + s.wd * y
                velocity = s.momentum * velocity + d
                y = y - s.eta(t) * (d + s.momentum * velocity if s.nesterov else velocity)
            ys[i] = y
        f = places[t % len(places)]
        d = s.delta(x, {i: ys[i] for i in cohort})[f]
        v[f] = beta * v[f] + d
        new = x.copy()
        new[f] -= server_lr * (d + beta * v[f])
        return new

    return s.play(after)
