"""What compresses a client's movement, or hides it in noise."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from hpcfl.seeds import NO_CLIENT, stream
from tests.algorithms.play import Array
from tests.algorithms.reference.setting import Setting


def draw(s: Setting, name: str, t: int, client: int = NO_CLIENT) -> Array:
    """A random vector of the job; its numbers alone are taken from hpcfl, as those of batches."""
    generator = stream(s.seed, f"draw {name}", t, client)
    made = generator.standard_normal if name == "noise" else generator.random
    return made(len(s.x0))


def number(ratio: float, v: Array) -> int:
    """ceil(ratio P)"""
    return int(-(-Fraction(str(ratio)) * len(v) // 1))


def largest(v: Array, by: Array, k: int) -> Array:
    """v at the k places where ``by`` is largest, a tie to the lower index; 0 elsewhere."""
    places = sorted(range(len(v)), key=lambda p: (-by[p], p))[:k]
    kept = np.zeros_like(v)
    kept[places] = v[places]
    return kept


def _averaged(
    s: Setting, server_lr: float, compressed: Callable[[Array, int, int], Array]
) -> Array:
    """The default server; ``compressed(v, t, i)`` is what client i sends of v = x - y."""

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        return x - server_lr * s.mean({i: compressed(x - s.descend(i, t, x), t, i) for i in cohort})

    return s.play(after)


def topk(s: Setting, ratio: float = 0.1, server_lr: float = 1.0) -> Array:
    return _averaged(s, server_lr, lambda v, t, i: largest(v, abs(v), number(ratio, v)))


def randk(s: Setting, ratio: float = 0.1, server_lr: float = 1.0) -> Array:
    def compressed(v: Array, t: int, i: int) -> Array:
        k = number(ratio, v)
        return len(v) / k * largest(v, draw(s, "mask", t, i), k)

    return _averaged(s, server_lr, compressed)


def qsgd(s: Setting, levels: int = 4, server_lr: float = 1.0) -> Array:
    def compressed(v: Array, t: int, i: int) -> Array:
        norm = np.linalg.norm(v)
        a = levels * abs(v) / norm
        up = draw(s, "rounding", t, i) < a - np.floor(a)
        return norm * np.sign(v) * (np.floor(a) + up) / levels

    return _averaged(s, server_lr, compressed)


def ef21(s: Setting, ratio: float = 0.1, server_lr: float = 1.0) -> Array:
    table = np.zeros((s.problem.population, len(s.x0)))

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        for i in cohort:
            left = x - s.descend(i, t, x) - table[i]
            table[i] += largest(left, abs(left), number(ratio, left))
        return x - server_lr * table.mean(axis=0)

    return s.play(after)


def dpfedavg(s: Setting, clip: float, noise: float, server_lr: float = 1.0) -> Array:
    """Whatever the setting's weights; a round without clients adds its noise."""
    path = [s.x0]
    for t, cohort in enumerate(s.cohorts):
        x = path[-1]
        total = noise * clip * draw(s, "noise", t)
        for i in cohort:
            v = x - s.descend(i, t, x)
            total += v * min(1.0, clip / np.linalg.norm(v))
        path.append(x - server_lr * total / (s.participation * s.problem.population))
    return np.stack(path)
