"""A job's numbers by hand; batches, local steps, means and rounds, as every method has them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcfl.data.batches import order, steps_of_passes
from hpcfl.seeds import stream
from tests.algorithms.play import Array, Problem

Gradient = Callable[[Array], Array]
Direction = Callable[[Array, Gradient], Array]  # (y, the step's gradient) -> d
Logits = Callable[[Array, Sequence[int]], Array]  # (logits, examples) -> a gradient by logits


def softmax(z: Array) -> Array:
    """Of every row."""
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def plain(y: Array, g: Gradient) -> Array:
    """FedAvg's direction."""
    return g(y)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Softmax regression of three classes and four features, and how it is trained."""

    problem: Problem
    x0: Array
    cohorts: Sequence[Sequence[int]]
    participation: float
    lr: float = 0.3
    lr_decay: float | str = 1.0  # or "cosine"
    wd: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    epochs: int | None = 2
    steps: int | None = None
    batch: int | None = 4
    drop_last: bool = False
    clip: float = np.inf
    uniform: bool = False
    seed: int = 5

    def eta(self, t: int) -> float:
        if self.lr_decay == "cosine":
            return self.lr * (1 + np.cos(np.pi * t / len(self.cohorts))) / 2
        return self.lr * self.lr_decay**t

    def K(self, client: int) -> int:
        """Local steps."""
        n = len(self.problem.rows(client))
        if self.steps or self.batch is None:
            return self.steps or self.epochs
        per_pass = max(1, n // self.batch) if self.drop_last else -(-n // self.batch)
        return self.epochs * per_pass

    def gradient(self, rows: Sequence[int], y: Array, logits: Logits | None = None) -> Array:
        """Of the mean softmax cross-entropy over ``rows``, at weights [3, 4] and biases [3].

        ``logits(z, rows)`` gives the gradient of another loss by the logits z, an example a row.
        """
        x, labels = self.problem.x[rows], self.problem.y[rows]
        weight, bias = y[:12].reshape(3, 4), y[12:]
        z = x @ weight.T + bias
        if logits is None:
            p = softmax(z)
            p[np.arange(len(rows)), labels] -= 1
        else:
            p = logits(z, rows)
        p = p / len(rows)
        return np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)])

    def full(self, client: int, y: Array) -> Array:
        """The gradient of the client's loss over all it holds."""
        return self.gradient(self.problem.rows(client), y)

    def clipped(self, rows: Sequence[int], y: Array, logits: Logits | None = None) -> Array:
        g = self.gradient(rows, y, logits)
        norm = np.linalg.norm(g)  # 0 where FedLC's client has one class
        return g * min(1.0, self.clip / norm) if norm else g

    def batches(self, client: int, t: int, logits: Logits | None = None) -> Iterator[Gradient]:
        """The gradient of each local step's batch, as a function of the point."""
        own = self.problem.rows(client)
        cut = {"batch_size": self.batch, "drop_last": self.drop_last}
        for chosen in order(
            len(own),
            **cut,
            steps=self.steps or steps_of_passes(len(own), epochs=self.epochs, **cut),
            generator=partial(stream, self.seed, "shuffle", t, client),
        ):
            yield lambda y, rows=own[chosen]: self.clipped(rows, y, logits)

    def descend(
        self,
        client: int,
        t: int,
        x: Array,
        direction: Direction = plain,
        logits: Logits | None = None,
        scale: Callable[[int], float] = lambda k: 1.0,
    ) -> Array:
        """y_i: d + wd y joins the velocity, 0 at x, that step k follows at eta scale(k)."""
        y, v = x, np.zeros_like(x)
        for k, g in enumerate(self.batches(client, t, logits)):
            d = direction(y, g) + self.wd * y
            v = self.momentum * v + d
            y = y - scale(k) * self.eta(t) * (d + self.momentum * v if self.nesterov else v)
        return y

    def heavy_ball(
        self,
        client: int,
        t: int,
        x: Array,
        momentum: Callable[[Array], Array],
        nesterov: bool,
    ) -> Array:
        """y_i, where every step adds the momentum at y; gradient and decay before or after it."""
        y = x
        for g in self.batches(client, t):
            moved = y + momentum(y)
            point = moved if nesterov else y
            y = moved - self.eta(t) * (g(point) + self.wd * point)
        return y

    def weights(self, cohort: Sequence[int]) -> Mapping[int, float]:
        """p_i"""
        n = {i: 1.0 if self.uniform else float(len(self.problem.rows(i))) for i in cohort}
        return {i: n[i] / sum(n.values()) for i in cohort}

    def mean(self, terms: Mapping[int, Array]) -> Array:
        """sum p_i term_i"""
        return sum(p * terms[i] for i, p in self.weights(list(terms)).items())

    def delta(self, x: Array, ends: Mapping[int, Array]) -> Array:
        """D = sum p_i (x - y_i)"""
        return self.mean({i: x - y for i, y in ends.items()})

    def play(self, after: Callable[[int, Sequence[int], Array], Array]) -> Array:
        """[T + 1, P]: ``after(t, cohort, x)`` is the next model, where there are clients."""
        path = [self.x0]
        for t, cohort in enumerate(self.cohorts):
            path.append(after(t, cohort, path[-1]) if cohort else path[-1])
        return np.stack(path)
