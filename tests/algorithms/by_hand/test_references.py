"""Centralised training and the server's optimiser by hand: what federated methods are held to."""

from math import sqrt

import numpy as np
import pytest

from tests.algorithms.by_hand.quadratic import TWO, UNEQUAL, epoch, local, near, replay
from tests.algorithms.play import Problem

# Gradients -1, 2 and -4 at 1, -1 in the mean.
THREE_BATCHES = Problem(np.ones((3, 1)), np.array([2.0, -1.0, 5.0]), np.zeros(3, dtype=int))


def test_centralized(run):
    """The pooled gradient is (g0 + 3 g1) / 4 = 3.25 y + 1; beta = 0.5.

    v = 4.25: 0.575; 2.125 + 2.86875 = 4.99375: 0.075625.  v goes on in the next round:
    2.496875 + 1.24578125 = 3.74265625: -0.298640625;
    1.871328125 + 0.02941796875 = 1.90074609375: -0.488715234375.
    """
    left = run({"name": "centralized", "beta": 0.5})
    assert left.x == near([1.0, 0.075625, -0.488715234375])
    assert left.client("v") == near([1.90074609375])


def test_centralized_decays_within_the_momentum(run):
    """wd = 0.5: 3.75 y + 1.  v = 4.75: 0.525; 2.375 + 2.96875 = 5.34375: -0.009375."""
    left = run({"name": "centralized", "beta": 0.5}, local=local(weight_decay=0.5), rounds=1)
    assert left.x[1] == near(-0.009375)
    assert left.client("v") == near([5.34375])


def test_centralized_clips_before_the_momentum(run):
    """At most 1 long, beta = 0.5: v = 1: 0.9; 0.5 + 1 = 1.5: 0.75."""
    left = run({"name": "centralized", "beta": 0.5}, local=local(clip=1.0), rounds=1)
    assert left.x[1] == near(0.75)


def test_centralized_momentum_keeps_its_size_when_the_rate_falls(run):
    """beta = 0.5, eta = 0.1 and then 0.05: v as torch's, free of eta.

    0.075625 - 0.05 x 3.74265625 = -0.1115078125; v = 1.871328125 + 0.637599609375 =
    2.508927734375: -0.23695419921875.
    """
    left = run({"name": "centralized", "beta": 0.5}, local=local(lr_decay=0.5))
    assert left.x == near([1.0, 0.075625, -0.23695419921875])


@pytest.mark.parametrize(("problem", "steps"), [(TWO, local()), (UNEQUAL, epoch())])
def test_server_only(run, problem, steps):
    """Both of K = 2 steps, or the one and the two, take g at x: G = 2.5 x: 0.75, 0.5625."""
    left = run({"name": "server_only"}, problem, local=steps)
    assert left.x == near([1.0, 0.75, 0.5625])


def test_server_only_weighs_by_examples(run):
    """G = (-1 + 3 x 6) / 4 = 4.25."""
    left = run({"name": "server_only"}, weights="examples", rounds=1)
    assert left.x[1] == near(0.575)


def test_server_only_makes_one_batch_of_many(run):
    """Three steps on one example each: G = -1, whatever the order."""
    left = run({"name": "server_only"}, THREE_BATCHES, local=epoch(), rounds=1)
    assert left.x[1] == near(1.1)


def test_server_only_weight_decay(run):
    """wd = 0.5, at x, in G = 2.5 + 0.5."""
    left = run({"name": "server_only"}, local=local(weight_decay=0.5), rounds=1)
    assert left.x[1] == near(0.7)


def test_server_only_rates(run):
    """eta_g = 0.5, eta = 0.1 and then 0.05: 1 - 0.05 x 2.5 = 0.875; 0.875 - 0.025 x 2.1875."""
    left = run({"name": "server_only", "server_lr": 0.5}, local=local(lr_decay=0.5))
    assert left.x == near([1.0, 0.875, 0.8203125])


def test_server_only_momentum(run):
    """beta = 0.9: v = 2.5: 0.75; v = 2.25 + 1.875 = 4.125: 0.3375."""
    left = run({"name": "server_only", "optimizer": "momentum"})
    assert left.x == near([1.0, 0.75, 0.3375])
    assert left.server("m") == near([0.0, 2.5, 4.125])


def test_server_only_momentum_rates(run):
    """eta_g = 0.5, eta = 0.1 and then 0.05: x = 0.875; v = 2.25 + 2.1875: 0.875 - 0.025 v."""
    fields = {"name": "server_only", "optimizer": "momentum", "server_lr": 0.5}
    left = run(fields, local=local(lr_decay=0.5))
    assert left.x == near([1.0, 0.875, 0.7640625])
    assert left.server("m") == near([0.0, 2.5, 4.4375])


def test_server_only_adam(run):
    """tau = 2.5: m^ = 2.5, v^ = 6.25: x = 1 - 0.1 x 2.5 / (2.5 + 2.5) = 0.95.

    G = 2.375: m = 0.225 + 0.2375 = 0.4625, m^ = m / 0.19;
    v = 0.00624375 + 0.005640625 = 0.011884375, v^ = v / 0.001999.
    """
    left = run({"name": "server_only", "optimizer": "adam", "tau": 2.5})
    assert left.server("m") == near([0.0, 0.25, 0.4625])
    assert left.server("v") == near([0.0, 0.00625, 0.011884375])
    last = 0.95 - 0.1 * (0.4625 / 0.19) / (sqrt(0.011884375 / 0.001999) + 2.5)
    assert left.x == near([1.0, 0.95, last])


@pytest.mark.parametrize("empty", [[], [[]]])
def test_server_only_mvr(run, empty):
    """beta = 0.5, wd = 0.5 in G and G'.  0 alone: m = G = -1 + 0.5: x = 1.05.

    1 alone: G = 6.2 + 0.525 and G' = 6 + 0.5: m = 6.725 + 0.5 (-0.5 - 6.5) = 3.225: 1.05 - 0.3225.
    An empty round before is none: the first one is the next.
    """
    fields = {"name": "server_only", "optimizer": "mvr", "beta": 0.5}
    cohort = replay(*empty, [0], [1])
    left = run(fields, local=local(weight_decay=0.5), cohort=cohort, rounds=len(empty) + 2)
    assert left.x[len(empty) :] == near([1.0, 1.05, 0.7275])
    assert left.server("m")[len(empty) :] == near([0.0, -0.5, 3.225])


def test_server_only_loses_no_small_gradient(run):
    """In float32 a step of 0.001 x 2^-17 from w = 1 would round to none; the gradient must not."""
    one = Problem(np.ones((1, 1)), np.array([1 - 2.0**-17]), np.zeros(1, dtype=int))
    momentum = {"name": "server_only", "optimizer": "momentum"}
    left = run(momentum, one, local=local(lr=1e-3), rounds=1, precision="float32")
    assert left.server("m") == [0.0, 2.0**-17]
