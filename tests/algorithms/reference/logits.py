"""Losses that see the logits of the classes."""

from collections.abc import Sequence

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.setting import Setting, softmax


def fedntd(s: Setting, beta: float = 1.0, tau: float = 1.0, server_lr: float = 1.0) -> Array:
    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        weight, bias = x[:12].reshape(3, 4), x[12:]

        def logits(z: Array, rows: Sequence[int]) -> Array:
            labels, teacher = s.problem.y[rows], s.problem.x[rows] @ weight.T + bias
            g = softmax(z)
            for row, label in enumerate(labels):
                others = [j for j in range(3) if j != label]
                g[row, label] -= 1
                p, q = (softmax(one[row : row + 1, others] / tau)[0] for one in (teacher, z))
                g[row, others] += beta * tau * (q - p)
            return g

        return x - server_lr * s.delta(x, {i: s.descend(i, t, x, logits=logits) for i in cohort})

    return s.play(after)


def fedlc(s: Setting, tau: float = 1.0, server_lr: float = 1.0) -> Array:
    def end(i: int, t: int, x: Array) -> Array:
        n = np.bincount(s.problem.y[s.problem.rows(i)], minlength=3)

        def logits(z: Array, rows: Sequence[int]) -> Array:
            g, present = np.zeros_like(z), n > 0
            g[:, present] = softmax(z[:, present] - tau * n[present] ** -0.25)
            g[np.arange(len(rows)), s.problem.y[rows]] -= 1
            return g

        return s.descend(i, t, x, logits=logits)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        return x - server_lr * s.delta(x, {i: end(i, t, x) for i in cohort})

    return s.play(after)
