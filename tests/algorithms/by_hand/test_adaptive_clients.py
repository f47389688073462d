"""Clients that step by Adam or Muon, on the two quadratics: gradients w - 2 and 4 w + 2."""

from math import sqrt

from tests.algorithms.by_hand.quadratic import local, near


def test_fedadamw(run):
    """b1 = 0.5, b2 = 0, so that v = g^2, eps = 1; corrected first moments.

    0: -1: -1 / 2: 1.05; -0.95, m = -0.725, / 0.75 = -29 / 30, / 1.95: 1.05 + 29 / 585.
    1: 6: 6 / 7: 6.4 / 7; 39.6 / 7, m = 30.3 / 7, / 0.75 = 40.4 / 7: - 4.04 / 46.6.
    """
    left = run({"name": "fedadamw", "b1": 0.5, "b2": 0.0, "eps": 1.0}, rounds=1)
    ends = 1.05 + 29 / 585, 6.4 / 7 - 4.04 / 46.6
    assert left.x[1] == near(sum(ends) / 2)
    assert left.server("v") == near([0.0, (0.95**2 + (39.6 / 7) ** 2) / 2])
    assert left.server("momentum") == near([0.0, (1 - sum(ends) / 2) / 0.2])


def test_fedlada(run):
    """One step, alpha = 0.5, b1 = 0, b2 = 0.75, eps = 1: v = g^2 / 4.

    0: -1: -1 / 3.  1: 6: 6 / 8.  Delta = 5 / 24, x = 47 / 48, vbar = 4.625.  Gradients -49 / 48
    and 71 / 12; v = 0.75 x 4.625 + g^2 / 4.
    """
    keys = {"name": "fedlada", "alpha": 0.5, "b1": 0.0, "b2": 0.75, "eps": 1.0}
    left = run(keys, local=local(steps=1))
    v = [0.75 * 4.625 + g**2 / 4 for g in (-49 / 48, 71 / 12)]
    d = [g / (sqrt(v) + 1) / 2 + 5 / 48 for g, v in zip((-49 / 48, 71 / 12), v, strict=True)]
    assert left.x == near([1.0, 47 / 48, 47 / 48 - sum(d) / 20])
    assert left.server("v") == near([0.0, 4.625, sum(v) / 2])
    assert left.server("momentum") == near([0.0, 5 / 24, sum(d) / 2])


def orthogonal(q):
    """Of a matrix of one entry: five steps from its sign, nearly."""
    x = q / (abs(q) + 1e-7)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    return x


def test_fedmuon(run):
    """beta = 0.5 without Nesterov; half a direction, as Delta = 0.

    0: M = -0.5, then -0.25 + (y - 2) / 2.  1: M = 3, then 1.5 + (4 y + 2) / 2.
    """
    left = run({"name": "fedmuon", "beta": 0.5, "nesterov": False}, rounds=1)
    first = 1 - 0.05 * orthogonal(-0.5), 1 - 0.05 * orthogonal(3.0)
    m = -0.25 + (first[0] - 2) / 2, 1.5 + (4 * first[1] + 2) / 2
    ends = [y - 0.05 * orthogonal(q) for y, q in zip(first, m, strict=True)]
    assert left.x[1] == near(sum(ends) / 2)
    assert left.server("m") == near([0.0, sum(m) / 2])
    assert left.server("momentum") == near([0.0, (1 - sum(ends) / 2) / 0.2])
