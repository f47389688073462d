"""What carries momentum into the clients' steps: a mean gradient, or past models."""

from collections.abc import Mapping, Sequence

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.averaging import sharp
from tests.algorithms.reference.setting import Direction, Setting, plain


def fedcm(
    s: Setting,
    alpha: float = 0.1,
    norm: str = "server",
    server_lr: float = 1.0,
    gradient: Direction = plain,
) -> Array:
    kept = np.zeros_like(s.x0)  # Delta, or D where clients divide

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal kept
        before = kept

        def end(i: int) -> Array:
            delta = before if norm == "server" else before / (s.eta(t) * s.K(i))
            return s.descend(i, t, x, lambda y, g: alpha * gradient(y, g) + (1 - alpha) * delta)

        ends = {i: end(i) for i in cohort}
        kept = s.mean(
            {i: (x - y) / (s.eta(t) * s.K(i) if norm == "server" else 1.0) for i, y in ends.items()}
        )
        return x - server_lr * s.delta(x, ends)

    return s.play(after)


def mofedsam(
    s: Setting,
    rho: float = 0.1,
    alpha: float = 0.1,
    norm: str = "server",
    server_lr: float = 1.0,
) -> Array:
    return fedcm(s, alpha, norm, server_lr, sharp(rho))


def fedadc(
    s: Setting,
    beta: float = 0.9,
    beta_local: float = 1.0,
    nesterov: bool = False,
    server_lr: float = 1.0,
) -> Array:
    m = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal m
        eta, old = s.eta(t), m

        def end(i: int) -> Array:
            return s.heavy_ball(i, t, x, lambda y: -eta * beta_local * old / s.K(i), nesterov)

        d = s.delta(x, {i: end(i) for i in cohort})
        m = d / eta - (beta_local - beta) * m
        return x - server_lr * eta * m

    return s.play(after)


def fedmim(
    s: Setting,
    alpha: Sequence[float] = (0.6, 0.3),
    beta: Sequence[float] = (0.9, 0.1),
    server_lr: float = 1.0,
) -> Array:
    past = [s.x0] * (len(alpha) + 1)  # x_t, x_(t-1), ...
    rest = 1 - sum(alpha)

    def end(i: int, t: int, x: Array) -> Array:
        d = [(past[j + 1] - past[j]) / s.K(i) for j in range(len(alpha))]
        y = x
        for g in s.batches(i, t):
            first = y - sum(a * dj for a, dj in zip(alpha, d, strict=True))
            second = y - sum(b * dj for b, dj in zip(beta, d, strict=True))
            y = first - rest * s.eta(t) * (g(second) + s.wd * second)
        return y

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal past
        following = x - server_lr * s.delta(x, {i: end(i, t, x) for i in cohort})
        past = [following, *past[:-1]]
        return following

    return s.play(after)


def ghb(
    s: Setting,
    beta: float = 0.9,
    tau: int | None = None,
    nesterov: bool = False,
    participation: float | None = None,
    server_lr: float = 1.0,
) -> Array:
    tau = tau or round(1 / (participation or s.participation))
    past = [s.x0] * tau  # the models that the last rounds with clients began with

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        difference = x - past[-tau] if t >= tau else np.zeros_like(x)
        past.append(x)

        def end(i: int) -> Array:
            return s.heavy_ball(i, t, x, lambda y: beta / (tau * s.K(i)) * difference, nesterov)

        return x - server_lr * s.delta(x, {i: end(i) for i in cohort})

    return s.play(after)


def localghb(
    s: Setting,
    beta: float = 0.9,
    nesterov: bool = False,
    participation: float | None = None,
    server_lr: float = 1.0,
) -> Array:
    factor, received = beta * (participation or s.participation), {}

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        def end(i: int) -> Array:
            step = factor / s.K(i) * (x - received.get(i, x))
            return s.heavy_ball(i, t, x, lambda y: step, nesterov)

        ends = {i: end(i) for i in cohort}
        received.update(dict.fromkeys(cohort, x))
        return x - server_lr * s.delta(x, ends)

    return s.play(after)


def fedhbm(
    s: Setting,
    beta: float = 1.0,
    first: str = "zero",
    nesterov: bool = False,
    participation: float | None = None,
    server_lr: float = 1.0,
    drawn: Mapping[int, Array] | None = None,
) -> Array:
    """``drawn`` are the clients' own random initialisations."""
    factor, last = beta * (participation or s.participation), {}

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        def momentum(i: int, y: Array) -> Array:
            if i in last:
                return factor / s.K(i) * (y - last[i])
            if first == "zero":
                return np.zeros_like(y)
            return factor / s.K(i) * (x - (s.x0 if first == "shared" else drawn[i]))

        def end(i: int) -> Array:
            return s.heavy_ball(i, t, x, lambda y: momentum(i, y), nesterov)

        ends = {i: end(i) for i in cohort}
        last.update(ends)
        return x - server_lr * s.delta(x, ends)

    return s.play(after)
