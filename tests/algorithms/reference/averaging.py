"""FedAvg, what changes its gradient or its rates alone, and what changes its server alone."""

from collections.abc import Callable, Sequence

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.setting import Direction, Gradient, Setting, plain


def sharp(rho: float) -> Direction:
    """SAM: the gradient a distance rho uphill."""

    def direction(y: Array, g: Gradient) -> Array:
        here = g(y)
        norm = np.linalg.norm(here)
        return g(y + rho * here / norm) if norm > 0 else here

    return direction


def _averaged(s: Setting, server_lr: float, direction: Callable[[Array], Direction]) -> Array:
    """The default server; the direction is made from x."""

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        ends = {i: s.descend(i, t, x, direction(x)) for i in cohort}
        return x - server_lr * s.delta(x, ends)

    return s.play(after)


def fedavg(s: Setting, server_lr: float = 1.0) -> Array:
    return _averaged(s, server_lr, lambda x: plain)


def fedprox(s: Setting, mu: float = 0.1, server_lr: float = 1.0) -> Array:
    return _averaged(s, server_lr, lambda x: lambda y, g: g(y) + mu * (y - x))


def fedsam(s: Setting, rho: float = 0.1, server_lr: float = 1.0) -> Array:
    return _averaged(s, server_lr, lambda x: sharp(rho))


def fedavgm(s: Setting, beta: float = 0.9, nesterov: bool = False, server_lr: float = 1.0) -> Array:
    v = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal v
        d = s.delta(x, {i: s.descend(i, t, x) for i in cohort})
        v = beta * v + d
        return x - server_lr * (d + beta * v if nesterov else v)

    return s.play(after)


Second = Callable[[Array, Array], Array]  # (v, D^2) -> the next v
Correction = Callable[[Array, Array, int], tuple[Array, Array]]  # (m, v, t) -> what is divided


def _uncorrected(m: Array, v: Array, t: int) -> tuple[Array, Array]:
    return m, v


def _correction(b1: float, b2: float, wanted: bool) -> Correction:
    if not wanted:
        return _uncorrected
    return lambda m, v, t: (m / (1 - b1 ** (t + 1)), v / (1 - b2 ** (t + 1)))


def _adaptive(
    s: Setting,
    b1: float,
    tau: float,
    v0: float,
    server_lr: float,
    second: Second,
    corrected: Correction = _uncorrected,
) -> Array:
    """A server with both moments of D."""
    m, v = np.zeros_like(s.x0), np.full_like(s.x0, v0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal m, v
        d = s.delta(x, {i: s.descend(i, t, x) for i in cohort})
        m, v = b1 * m + (1 - b1) * -d, second(v, d**2)
        first, root = corrected(m, v, t)
        return x + server_lr * first / (np.sqrt(root) + tau)

    return s.play(after)


def fedadam(
    s: Setting,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    v0: float = 0.0,
    bias_correction: bool = False,
    server_lr: float = 0.1,
) -> Array:
    def second(v: Array, square: Array) -> Array:
        return b2 * v + (1 - b2) * square

    return _adaptive(s, b1, tau, v0, server_lr, second, _correction(b1, b2, bias_correction))


def fedyogi(
    s: Setting,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    v0: float = 0.0,
    bias_correction: bool = False,
    server_lr: float = 0.1,
) -> Array:
    def second(v: Array, square: Array) -> Array:
        return v - (1 - b2) * square * np.sign(v - square)

    return _adaptive(s, b1, tau, v0, server_lr, second, _correction(b1, b2, bias_correction))


def fedadagrad(
    s: Setting, b1: float = 0.0, tau: float = 1e-3, v0: float = 0.0, server_lr: float = 0.1
) -> Array:
    return _adaptive(s, b1, tau, v0, server_lr, lambda v, square: v + square)


def fednova(s: Setting, mu: float = 0.0, server_lr: float = 1.0) -> Array:
    rho = s.momentum

    def worth(i: int, t: int) -> float:
        """a_i: the sum of the factors with which the K gradients are in x - y."""
        if mu:
            return sum((1 - s.eta(t) * mu) ** k for k in range(s.K(i)))
        return sum(sum(rho**j for j in range(k)) for k in range(1, s.K(i) + 1))

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        ends = {i: s.descend(i, t, x, lambda y, g: g(y) + mu * (y - x)) for i in cohort}
        d = s.mean({i: (x - y) / worth(i, t) for i, y in ends.items()})
        tau = s.mean({i: s.K(i) if mu else worth(i, t) for i in cohort})
        return x - server_lr * tau * d

    return s.play(after)


def fedacg(s: Setting, lam: float = 0.85, beta: float = 0.002, server_lr: float = 1.0) -> Array:
    v = np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal v
        ahead = x - lam * v
        ends = {i: s.descend(i, t, ahead, lambda y, g: g(y) + beta * (y - ahead)) for i in cohort}
        v = lam * v + s.delta(ahead, ends)
        return x - server_lr * v

    return s.play(after)


def fedvarp(s: Setting, server_lr: float = 1.0) -> Array:
    table = np.zeros((s.problem.population, len(s.x0)))  # each client's newest x - y

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        new = {i: x - s.descend(i, t, x) for i in cohort}
        step = np.mean([new[i] - table[i] for i in cohort], axis=0) + table.mean(axis=0)
        for i, delta in new.items():
            table[i] = delta
        return x - server_lr * step

    return s.play(after)


def fedexp(s: Setting, eps: float = 1e-3, average: int = 1) -> Array:
    """``average`` changes what is evaluated alone."""

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        ends = {i: s.descend(i, t, x) for i in cohort}
        d = s.delta(x, ends)
        squares = s.mean({i: np.sum((x - y) ** 2) for i, y in ends.items()})
        return x - max(1.0, squares / (2 * (np.sum(d**2) + eps))) * d

    return s.play(after)


def fedinit(s: Setting, beta: float = 0.1, delta: str = "model", server_lr: float = 1.0) -> Array:
    last = [s.x0] * s.problem.population

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        starts = {i: x + beta * (x - last[i]) for i in cohort}
        for i in cohort:
            last[i] = s.descend(i, t, starts[i])
        d = s.mean({i: (x if delta == "model" else starts[i]) - last[i] for i in cohort})
        return x - server_lr * d

    return s.play(after)


def falling(s: Setting, i: int, rho: float) -> Callable[[int], float]:
    """FedSWA's factors of the rate: from 1 on towards rho."""
    K = s.K(i)
    return lambda k: (1 - k / K) + rho * k / K


def fedswa(s: Setting, rho: float = 0.1, server_lr: float = 1.5) -> Array:
    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        ends = {i: s.descend(i, t, x, scale=falling(s, i, rho)) for i in cohort}
        return x - server_lr * s.delta(x, ends)

    return s.play(after)
