"""FedAvg, SCAFFOLD and FedHBM once more, in plain numpy float64, from the papers' definitions.

Nothing here knows hpcfl's interface; only the order of mini-batches is taken from it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcfl.data.batches import order
from hpcfl.seeds import stream
from tests.algorithms.play import Array, Problem

Gradient = Callable[[Array], Array]


@dataclass
class Setting:
    """A job's numbers, by hand."""

    problem: Problem
    x0: Array
    cohorts: Sequence[Sequence[int]]
    participation: float
    lr: float = 0.3
    lr_decay: float = 1.0
    wd: float = 0.0
    epochs: int = 2
    batch: int | None = 4
    uniform: bool = False
    server_lr: float = 1.0
    seed: int = 5

    def eta(self, t: int) -> float:
        return self.lr * self.lr_decay**t

    def gradient(self, rows: Sequence[int], y: Array) -> Array:
        """Of the mean softmax cross-entropy over ``rows``, at weights [3, 4] and biases [3]."""
        x, labels = self.problem.x[rows], self.problem.y[rows]
        weight, bias = y[:12].reshape(3, 4), y[12:]
        logits = x @ weight.T + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(rows)), labels] -= 1
        p /= len(rows)
        return np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)])

    def steps(self, client: int) -> int:
        n = len(self.problem.rows(client))
        return self.epochs * (1 if self.batch is None else -(-n // self.batch))

    def batches(self, client: int, t: int) -> Iterator[Gradient]:
        """The gradient of each local step's batch, as a function of the point."""
        own = self.problem.rows(client)
        for chosen in order(
            len(own),
            batch_size=self.batch,
            epochs=self.epochs,
            steps=None,
            drop_last=False,
            generator=stream(self.seed, "shuffle", t, client),
        ):
            yield lambda y, rows=own[chosen]: self.gradient(rows, y)

    def full(self, client: int, y: Array) -> Array:
        return self.gradient(self.problem.rows(client), y)

    def mean_delta(self, x: Array, ends: Mapping[int, Array]) -> Array:
        """D = sum p_i (x - y_i)."""
        n = {i: 1.0 if self.uniform else float(len(self.problem.rows(i))) for i in ends}
        total = sum(n.values())
        return sum((n[i] / total * (x - y) for i, y in ends.items()), np.zeros_like(x))


def fedavg(s: Setting) -> Array:
    """[T + 1, P]"""
    found = [s.x0]
    for t, cohort in enumerate(s.cohorts):
        ends = {}
        for i in cohort:
            y = found[-1]
            for g in s.batches(i, t):
                y = y - s.eta(t) * (g(y) + s.wd * y)
            ends[i] = y
        found.append(found[-1] - s.server_lr * s.mean_delta(found[-1], ends))
    return np.stack(found)


def scaffold(s: Setting, option: int) -> Array:
    """[T + 1, P]"""
    population = s.problem.population
    found, c = [s.x0], np.zeros_like(s.x0)
    own = np.zeros((population, len(s.x0)))
    for t, cohort in enumerate(s.cohorts):
        x, ends, change = found[-1], {}, np.zeros_like(c)
        for i in cohort:
            y = x
            for g in s.batches(i, t):
                y = y - s.eta(t) * (g(y) - own[i] + c + s.wd * y)
            second = own[i] - c + (x - y) / (s.steps(i) * s.eta(t))
            after = s.full(i, x) if option == 1 else second
            change += after - own[i]
            own[i], ends[i] = after, y
        c = c + change / population
        found.append(x - s.server_lr * s.mean_delta(x, ends))
    return np.stack(found)


def fedhbm(
    s: Setting, beta: float, first: str, nesterov: bool, drawn: Mapping[int, Array]
) -> Array:
    """[T + 1, P]; ``drawn`` are the clients' own random initialisations."""
    found, last = [s.x0], {}
    for t, cohort in enumerate(s.cohorts):
        x, ends = found[-1], {}
        for i in cohort:
            factor, y = beta * s.participation / s.steps(i), x
            for g in s.batches(i, t):
                if i in last:
                    momentum = factor * (y - last[i])
                elif first == "zero":
                    momentum = np.zeros_like(y)
                else:
                    momentum = factor * (x - (s.x0 if first == "shared" else drawn[i]))
                point = y + momentum if nesterov else y
                y = y + momentum - s.eta(t) * (g(point) + s.wd * point)
            ends[i] = y
        last |= ends
        found.append(x - s.server_lr * s.mean_delta(x, ends))
    return np.stack(found)


def localghb(s: Setting, beta: float, nesterov: bool) -> Array:
    """[T + 1, P]."""
    found, received = [s.x0], {}
    for t, cohort in enumerate(s.cohorts):
        x, ends = found[-1], {}
        for i in cohort:
            momentum = beta * s.participation / s.steps(i) * (x - received.get(i, x))
            y = x
            for g in s.batches(i, t):
                point = y + momentum if nesterov else y
                y = y + momentum - s.eta(t) * (g(point) + s.wd * point)
            ends[i], received[i] = y, x
        found.append(x - s.server_lr * s.mean_delta(x, ends))
    return np.stack(found)
