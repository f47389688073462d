"""Mime and MimeLite by hand: the cohort's full gradient c = 2.5 x is the server's momentum.

Mime's G = g(y) - g(x) + c is y - x + c for client 0 and 4 (y - x) + c for client 1.  Two steps of
G + beta m with q = c + beta m: 0 goes x - 0.1 q, then d = 0.9 q: x - 0.19 q; 1 goes x - 0.1 q, then
d = 0.6 q: x - 0.16 q.  So D = 0.175 q.
"""

import numpy as np
import pytest

from hpcfl.algorithms.mimeadam import MimeAdam
from tests.algorithms.by_hand.quadratic import local, near, replay
from tests.algorithms.play import Problem

SPREAD = Problem(np.ones((2, 1)), np.array([0.0, 4.0]), np.array([0, 0]))


def test_mime(run):
    """No momentum: x = 1 - 0.175 x 2.5 = 0.5625; c = 1.40625, x = 0.5625 - 0.24609375."""
    left = run({"name": "mime"})
    assert left.x == near([1.0, 0.5625, 0.31640625])
    assert all(len(server["m"]) == 0 for server in left.servers)


def test_mime_weighs_delta_but_not_the_gradient(run):
    """c = (g0 + g1) / 2 all the same; D = (0.475 + 3 x 0.4) / 4 = 0.41875."""
    assert run({"name": "mime"}, weights="examples", rounds=1).x[1] == near(0.58125)


def test_mime_clips_both_gradients_but_not_the_full_one(run):
    """At most 1.1 long; c = 2.5.  0: -1 + 1 + 2.5: 0.75; g = -1.25 -> -1.1: 2.4: 0.51.

    1: 1.1 - 1.1 + 2.5: 0.75; 5 -> 1.1, again 2.5: 0.5.  x = 1.01 / 2.
    """
    assert run({"name": "mime"}, local=local(clip=1.1), rounds=1).x[1] == near(0.505)


def test_mime_weight_decay(run):
    """wd = 0.5 is no part of c.  0: 2.5 + 0.5: 0.7; 2.2 + 0.35: 0.445.

    1: 2.5 + 0.5: 0.7; 1.3 + 0.35: 0.535.  x = 0.98 / 2.
    """
    assert run({"name": "mime"}, local=local(weight_decay=0.5), rounds=1).x[1] == near(0.49)


@pytest.mark.parametrize("name", ["mime", "mimemom"])
def test_mime_takes_the_gradient_of_all_the_data(run, name):
    """One step on one of two examples, targets 0 and 4: G = c = 1 - 2, whichever it is."""
    left = run({"name": name}, SPREAD, local=local(steps=1, batch_size=1), rounds=1)
    assert left.x[1] == near(1.1)


def test_mime_server_lr(run):
    """1 - 0.5 x 0.4375."""
    assert run({"name": "mime", "server_lr": 0.5}, rounds=1).x[1] == near(0.78125)


@pytest.mark.parametrize("name", ["mimemom", "mime"])
def test_mimemom(run, name):
    """beta = 0.5, m from before the round: q = 2.5, x = 0.5625, m = 2.5.

    c = 1.40625, q = 1.40625 + 1.25 = 2.65625, D = 0.46484375; m = 1.25 + 1.40625.
    """
    left = run({"name": name, "beta": 0.5})
    assert left.x == near([1.0, 0.5625, 0.09765625])
    assert left.server("m") == near([0.0, 2.5, 2.65625])


@pytest.mark.parametrize("name", ["mimemom", "mime"])
def test_mimemom_ema(run, name):
    """beta = 0.5: 0.5 G + 0.5 m from q = 0.5 c + 0.5 m = 1.25: 0 goes 0.875,

    then 0.5 (-0.125) + 1.25 = 1.1875: 0.75625; 1 goes 0.875, then 0.5 (-0.5) + 1.25 = 1: 0.775.
    x = 0.765625, m = 0.5 x 2.5 = 1.25.  c = 1.9140625, q = 0.95703125 + 0.625 = 1.58203125:
    0 goes x - 0.195 q, 1 goes x - 0.18 q, D = 0.1875 q = 0.296630859375; m = 0.625 + 0.95703125.
    """
    left = run({"name": name, "beta": 0.5, "form": "ema"})
    assert left.x == near([1.0, 0.765625, 0.468994140625])
    assert left.server("m") == near([0.0, 1.25, 1.58203125])


def test_mimemom_weight_decay(run):
    """wd = 0.5, beta = 0.5: round 0 as mime's, x = 0.49, m = 2.5 without the decay.

    c = 1.225, q = 2.475.  Both go 0.49 - 0.1 (2.475 + 0.245) = 0.218, moved by -0.272; then
    0: 2.203 + 0.109: -0.0132; 1: 1.387 + 0.109: 0.0684.  m = 1.25 + 1.225.
    """
    left = run({"name": "mimemom", "beta": 0.5}, local=local(weight_decay=0.5))
    assert left.x == near([1.0, 0.49, 0.0276])
    assert left.server("m") == near([0.0, 2.5, 2.475])


@pytest.mark.parametrize("name", ["mimemom", "mimelitemom"])
def test_mimemom_does_not_weigh_the_gradient(run, name):
    """m = c = (g0 + g1) / 2 = 2.5; by examples it would be 4.25."""
    left = run({"name": name}, weights="examples", rounds=1)
    assert left.server("m") == near([0.0, 2.5])


def test_mimelite(run):
    """No momentum: FedAvg's x, and nothing kept."""
    left = run({"name": "mimelite"})
    assert left.x == near([1.0, 0.615, 0.389775])
    assert all(len(server["m"]) == 0 for server in left.servers)


@pytest.mark.parametrize("name", ["mimelitemom", "mimelite"])
def test_mimelitemom(run, name):
    """beta = 0.5, m from before the round: x = 0.615 as FedAvg's, m = c = 2.5.

    Both add 1.25.  0: -0.135: 0.6285; -0.1215: 0.64065.  1: 5.71: 0.044; 3.426: -0.2986.
    c = 1.5375 at 0.615, m = 1.25 + 1.5375.
    """
    left = run({"name": name, "beta": 0.5})
    assert left.x == near([1.0, 0.615, 0.171025])
    assert left.server("m") == near([0.0, 2.5, 2.7875])


@pytest.mark.parametrize("name", ["mimelitemom", "mimelite"])
def test_mimelitemom_ema(run, name):
    """beta = 0.5: half of g.  0: -0.5: 1.05; -0.475: 1.0975.  1: 3: 0.7; 2.4: 0.46.

    x = 0.77875, m = 0.5 x 2.5.  Both add 0.625: 0: -0.610625 + 0.625 = 0.014375: 0.7773125;
    0.01365625: 0.775946875.  1: 2.5575 + 0.625 = 3.1825: 0.4605; 2.546: 0.2059.
    c = 1.946875, m = 0.625 + 0.9734375.
    """
    left = run({"name": name, "beta": 0.5, "form": "ema"})
    assert left.x == near([1.0, 0.77875, 0.4909234375])
    assert left.server("m") == near([0.0, 1.25, 1.5984375])


def test_mimelitemom_clips_the_batches_but_not_the_full_gradient(run):
    """At most 1.5 long, beta = 0.5.  0 goes 1.1 -> 1.19, 1 goes 0.85 -> 0.7: x = 0.945, m = 2.5.

    Both add 1.25.  0: -1.055: 0.195: 0.9255; -1.0745: 0.1755: 0.90795.
    1: 2.75 twice: 0.67 -> 0.395.  c = 2.3625, m = 1.25 + 2.3625.
    """
    left = run({"name": "mimelitemom", "beta": 0.5}, local=local(clip=1.5))
    assert left.x == near([1.0, 0.945, 0.651475])
    assert left.server("m") == near([0.0, 2.5, 3.6125])


ADAM = {"b1": 0.5, "b2": 0.75, "eps": 0.5}


def test_mimeadam(run):
    """v = 4 before the round: a step is 0.5 G / (2 + 0.5) = 0.2 G.  G = 2.5: both go 0.95.

    0: 2.45: 0.901.  1: 2.3: 0.904.  x = 0.9025; m = 0.5 x 2.5, v = 0.75 x 4 + 0.25 x 6.25.
    """
    left = run({"name": "mimeadam", "v0": 4.0, **ADAM}, rounds=1)
    assert left.x == near([1.0, 0.9025])
    assert left.server("m") == near([0.0, 1.25])
    assert left.server("v") == near([4.0, 4.5625])


def test_mimeadam_as_a_step_of_the_optimizer(run):
    """v = 0: m' = 0.5 G / 0.5, v' = 0.25 G^2 / 0.25: a step is G / (|G| + 0.5).

    G = 2.5: both go 1 - 1 / 12.  0: 29 / 12: 29 / 35.  1: 26 / 12: 26 / 32.
    """
    left = run({"name": "mimeadam", "form": "optimizer", **ADAM}, rounds=1)
    assert left.x[1] == near(11 / 12 - (29 / 35 + 26 / 32) / 20)
    assert left.server("v") == near([0.0, 1.5625])


def test_mimeliteadam(run):
    """A step is 0.2 g.  0: -1: 1.02; -0.98: 1.0396.  1: 6: 0.88; 5.52: 0.7696."""
    left = run({"name": "mimeliteadam", "v0": 4.0, **ADAM}, rounds=1)
    assert left.x == near([1.0, 0.9046])
    assert left.server("m") == near([0.0, 1.25])
    assert left.server("v") == near([4.0, 4.5625])


def test_mimemvr(run):
    """beta = 0.5; all take part, so that m = c.  c = 2.5: 0 adds (2.5 + 1) / 2 to its gradient,

    1 adds (2.5 - 6) / 2.  0: -1 + 1.75: 0.925; -1.075 + 1.75: 0.8575.  1: 6 - 1.75: 0.575;
    4.3 - 1.75: 0.32.  x = 0.58875, c = 1.471875; they add +-1.4415625.  0: 0.0303125: 0.58571875;
    0.02728125: 0.582990625.  1: 2.9134375: 0.29740625; 1.7480625: 0.1226.
    """
    left = run({"name": "mimemvr", "beta": 0.5})
    assert left.x == near([1.0, 0.58875, 0.3527953125])
    assert left.server("m") == near([0.0, 2.5, 1.471875])
    assert left.server("previous") == near([1.0, 1.0, 0.58875])


@pytest.mark.parametrize("empty", [[], [[]]])
def test_mimemvr_takes_both_gradients_of_one_cohort(run, empty):
    """beta = 0.5, one step.  0 alone: m = c = -1, d = -1: x = 1.1.

    1 alone: c = 6.4 and c' = 6, its gradient at 1: m = 6.4 + 0.5 (-1 - 6) = 2.9,
    d = 6.4 + 0.5 (2.9 - 6.4) = 4.65.  An empty round before is none: the first one is the next.
    """
    cohort = replay(*empty, [0], [1])
    left = run(
        {"name": "mimemvr", "beta": 0.5}, local=local(steps=1), cohort=cohort, rounds=len(empty) + 2
    )
    assert left.x[len(empty) :] == near([1.0, 1.1, 0.635])
    assert left.server("m")[len(empty) :] == near([0.0, -1.0, 2.9])


def test_mimemvr_weight_decay(run):
    """wd = 0.5 is no part of m: c = 2.5.  0: 0.75 + 0.5: 0.875; 0.625 + 0.4375: 0.76875.

    1: 4.25 + 0.5: 0.525; 2.35 + 0.2625: 0.26375.  x = 0.51625, m = 2.5 x 0.51625.
    """
    left = run({"name": "mimemvr", "beta": 0.5}, local=local(weight_decay=0.5))
    assert left.x[:2] == near([1.0, 0.51625])
    assert left.server("m") == near([0.0, 2.5, 1.290625])


def test_mimeadam_corrects_no_moment_in_the_form_fixed():
    with pytest.raises(ValueError, match=r"bias_correction: form fixed has none; set form"):
        MimeAdam(bias_correction=True)
