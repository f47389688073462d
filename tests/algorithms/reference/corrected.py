"""What corrects a client's drift: SCAFFOLD, FedDyn, AdaBest, Mime, MimeLite and their kin."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.algorithms.play import Array
from tests.algorithms.reference.averaging import falling
from tests.algorithms.reference.setting import Direction, Setting, plain

Directions = Callable[[int, Array], Direction]  # of a client in a round that starts at x


def scaffold(
    s: Setting,
    option: int = 2,
    first: str = "zero",
    server_lr: float = 1.0,
    gradient: Directions = lambda i, x: plain,
) -> Array:
    population = s.problem.population
    c, own = np.zeros_like(s.x0), np.zeros((population, len(s.x0)))
    if first == "gradient":
        own = np.stack([s.full(i, s.x0) for i in range(population)])
        c = own.mean(axis=0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal c

        def end(i: int) -> Array:
            taken = gradient(i, x)
            return s.descend(i, t, x, lambda y, g: taken(y, g) - own[i] + c)

        ends, change = {i: end(i) for i in cohort}, np.zeros_like(c)
        for i, y in ends.items():
            second = own[i] - c + (x - y) / (s.K(i) * s.eta(t))
            new = s.full(i, x) if option == 1 else second
            change += new - own[i]
            own[i] = new
        c = c + change / population
        return x - server_lr * s.delta(x, ends)

    return s.play(after)


def feddyn(
    s: Setting,
    alpha: float = 0.1,
    server_lr: float = 1.0,
    gradient: Directions = lambda i, x: plain,
) -> Array:
    population = s.problem.population
    h, own = np.zeros_like(s.x0), np.zeros((population, len(s.x0)))

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal h

        def end(i: int) -> Array:
            taken = gradient(i, x)
            return s.descend(i, t, x, lambda y, g: taken(y, g) - own[i] + alpha * (y - x))

        ends = {i: end(i) for i in cohort}
        for i, y in ends.items():
            own[i] -= alpha * (y - x)
        h = h - alpha / population * sum(y - x for y in ends.values())
        return x - server_lr * s.delta(x, ends) - h / alpha

    return s.play(after)


def adabest(s: Setting, mu: float = 0.02, beta: float = 0.9, server_lr: float = 1.0) -> Array:
    population = s.problem.population
    previous, own = s.x0, np.zeros((population, len(s.x0)))
    last = [0] * population

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal previous

        def end(i: int) -> Array:
            return s.descend(i, t, x, lambda y, g: g(y) - own[i])

        ends, now = {i: end(i) for i in cohort}, t + 1
        for i, y in ends.items():
            own[i] = own[i] / (now - last[i]) + mu * (x - y)
            last[i] = now
        average = x - server_lr * s.delta(x, ends)
        following = average - beta * (previous - average)
        previous = average
        return following

    return s.play(after)


def mime(
    s: Setting, beta: float = 0.0, form: str = "heavy", server_lr: float = 1.0, lite: bool = False
) -> Array:
    m = np.zeros_like(s.x0)
    new = 1.0 if form == "heavy" else 1 - beta

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal m
        c, old = np.mean([s.full(i, x) for i in cohort], axis=0), m

        def end(i: int) -> Array:
            return s.descend(
                i, t, x, lambda y, g: new * (g(y) if lite else g(y) - g(x) + c) + beta * old
            )

        m = beta * m + new * c
        return x - server_lr * s.delta(x, {i: end(i) for i in cohort})

    return s.play(after)


def mimemom(s: Setting, beta: float = 0.9, form: str = "heavy", server_lr: float = 1.0) -> Array:
    return mime(s, beta, form, server_lr)


def mimelite(s: Setting, beta: float = 0.0, form: str = "heavy", server_lr: float = 1.0) -> Array:
    return mime(s, beta, form, server_lr, lite=True)


def mimelitemom(
    s: Setting, beta: float = 0.9, form: str = "heavy", server_lr: float = 1.0
) -> Array:
    return mime(s, beta, form, server_lr, lite=True)


def mimemvr(s: Setting, beta: float = 0.9, server_lr: float = 1.0) -> Array:
    m = past = None  # the momentum and the model of the last round

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal m, past
        c = np.mean([s.full(i, x) for i in cohort], axis=0)
        if past is not None:
            c = c + beta * (m - np.mean([s.full(i, past) for i in cohort], axis=0))
        m, past = c, x

        def end(i: int) -> Array:
            return s.descend(i, t, x, lambda y, g: (1 - beta) * g(y) + beta * (m + g(y) - g(x)))

        return x - server_lr * s.delta(x, {i: end(i) for i in cohort})

    return s.play(after)


def mimeadam(
    s: Setting,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-3,
    v0: float = 0.0,
    form: str = "fixed",
    bias_correction: bool = True,
    server_lr: float = 1.0,
    lite: bool = False,
) -> Array:
    m, v = np.zeros_like(s.x0), np.full_like(s.x0, v0)

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal m, v
        c, first, second = np.mean([s.full(i, x) for i in cohort], axis=0), m, v

        def d(G: Array) -> Array:
            top, bottom = b1 * first + (1 - b1) * G, second
            if form == "optimizer":
                bottom = b2 * second + (1 - b2) * G**2
                if bias_correction:
                    top, bottom = top / (1 - b1 ** (t + 1)), bottom / (1 - b2 ** (t + 1))
            return top / (np.sqrt(bottom) + eps)

        def end(i: int) -> Array:
            return s.descend(i, t, x, lambda y, g: d(g(y) if lite else g(y) - g(x) + c))

        ends = {i: end(i) for i in cohort}
        m, v = b1 * m + (1 - b1) * c, b2 * v + (1 - b2) * c**2
        return x - server_lr * s.delta(x, ends)

    return s.play(after)


def mimeliteadam(s: Setting, **fields: Any) -> Array:
    return mimeadam(s, **fields, lite=True)


def fedmoswa(s: Setting, rho: float = 0.1, gamma: float = 0.2, server_lr: float = 1.5) -> Array:
    m, own = np.zeros_like(s.x0), np.zeros((s.problem.population, len(s.x0)))

    def after(t: int, cohort: Sequence[int], x: Array) -> Array:
        nonlocal m

        def end(i: int) -> Array:
            return s.descend(i, t, x, lambda y, g: g(y) - own[i] + m, scale=falling(s, i, rho))

        ends = {i: end(i) for i in cohort}
        for i, y in ends.items():
            rates = s.eta(t) * sum(map(falling(s, i, rho), range(s.K(i))))
            own[i] = own[i] - m + (x - y) / rates
        m = m + gamma * np.mean([own[i] - m for i in cohort], axis=0)
        return x - server_lr * s.delta(x, ends)

    return s.play(after)
