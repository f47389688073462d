"""Adam's and Muon's steps at the clients, from statistics of the last round."""

from collections.abc import Sequence

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.setting import Direction, Gradient, Setting

MATRIX = slice(0, 12)  # weights [3, 4]; the biases [3] are no matrix


def _played(s: Setting, server_lr: float, size: int, run) -> Array:
    """``run(t, client, sent, Delta)`` gives a client's direction, and what it sends at the end."""
    sent, delta = np.zeros(size), np.zeros_like(s.x0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal sent, delta
        ends, kept = {}, {}
        for i in cohort:
            direction, end = run(t, i, sent, delta)
            ends[i] = s.descend(i, t, x, direction)
            kept[i] = end()
        sent = s.mean(kept)
        delta = s.mean({i: (x - y) / (s.eta(t) * s.K(i)) for i, y in ends.items()})
        return x - server_lr * s.delta(x, ends)

    return s.play(after)


def _moments(v: Array, b1: float, b2: float, step) -> tuple[Direction, object]:
    """A direction ``step(m, v, k)`` of Adam's moments, and a function that gives the last v."""
    m, k = np.zeros_like(v), 0

    def direction(y: Array, g: Gradient) -> Array:
        nonlocal m, v, k
        k, now = k + 1, g(y)
        m, v = b1 * m + (1 - b1) * now, b2 * v + (1 - b2) * now**2
        return step(m, v, k)

    return direction, lambda: v


def fedadamw(
    s: Setting,
    alpha: float = 0.5,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    v: str = "mean",
    running: bool = False,
    server_lr: float = 1.0,
) -> Array:
    parts = (MATRIX, slice(12, 15))

    def run(t: int, i: int, sent: Array, delta: Array):
        whole = sent if v == "full" else np.concatenate([np.full(12, sent[0]), np.full(3, sent[1])])

        def step(m: Array, second: Array, k: int) -> Array:
            n = t * s.K(i) + k
            first = m / (1 - b1 ** (n if running else k))
            return first / (np.sqrt(second / (1 - b2**n)) + eps) + alpha * delta

        direction, end = _moments(whole, b1, b2, step)
        if v == "full":
            return direction, end
        return direction, lambda: np.array([end()[part].mean() for part in parts])

    return _played(s, server_lr, 15 if v == "full" else 2, run)


def fedlada(
    s: Setting,
    alpha: float = 0.9,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    server_lr: float = 1.0,
) -> Array:
    def run(t: int, i: int, sent: Array, delta: Array):
        return _moments(
            sent,
            b1,
            b2,
            lambda m, v, k: (1 - alpha) * m / (np.sqrt(v) + eps) + alpha * delta,
        )

    return _played(s, server_lr, 15, run)


def fedmuon(
    s: Setting,
    alpha: float = 0.5,
    beta: float = 0.98,
    nesterov: bool = True,
    matrix_lr: float = 1.0,
    server_lr: float = 1.0,
) -> Array:
    def run(t: int, i: int, sent: Array, delta: Array):
        momentum = sent
        adam, _ = _moments(
            np.zeros(3),
            0.9,
            0.95,
            lambda m, v, k: m / (1 - 0.9**k) / (np.sqrt(v / (1 - 0.95**k)) + 1e-10),
        )

        def direction(y: Array, g: Gradient) -> Array:
            nonlocal momentum
            now = g(y)
            momentum = beta * momentum + (1 - beta) * now[MATRIX]
            q = (1 - beta) * now[MATRIX] + beta * momentum if nesterov else momentum
            matrix = matrix_lr * _orthogonal(q.reshape(3, 4)).ravel()  # rows <= columns
            others = adam(y, lambda _: now[12:])
            return (1 - alpha) * np.concatenate([matrix, others]) + alpha * delta

        return direction, lambda: momentum

    return _played(s, server_lr, 12, run)


def _orthogonal(q: Array) -> Array:
    x = q / (np.sqrt((q**2).sum()) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x
