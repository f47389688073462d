"""FedSAM and MoFedSAM by hand: the gradient is taken a step uphill, here of 0.5 by its sign."""

import numpy as np

from tests.algorithms.by_hand.quadratic import UNEQUAL, epoch, local, near
from tests.algorithms.play import Problem

# At (1, 1) the gradient is ((1 + 5) / 2, (1 + 7) / 2) = (3, 4), of norm 5.
PLANE = Problem(np.eye(2), np.array([-5.0, -7.0]), np.array([0, 0]))
FLAT = Problem(np.ones((1, 1)), np.ones(1), np.array([0]))  # at its minimum from the start


def test_fedsam(run):
    """rho = 0.5.  0: at 0.5, -1.5: 1.15; at 0.65, -1.35: 1.285.

    1: at 1.5, 8: 0.2; at 0.7, 4.8: -0.28.  x = 1.005 / 2 = 0.5025.
    0: at 0.0025, -1.9975: 0.70225; at 0.20225, -1.79775: 0.882025.
    1: at 1.0025, 6.01: -0.0985; at 0.4015, 3.606: -0.4591.  x = 0.422925 / 2.
    """
    assert run({"name": "fedsam", "rho": 0.5}).x == near([1.0, 0.5025, 0.2114625])


def test_fedsam_takes_the_norm_over_all_parameters(run):
    """rho = 0.5: up by (0.3, 0.4), there the gradient is (3.15, 4.2)."""
    left = run({"name": "fedsam", "rho": 0.5}, PLANE, local=local(steps=1), rounds=1)
    assert list(left.servers[1]["x"]) == near([0.685, 0.58])


def test_fedsam_does_not_ascend_a_zero_gradient(run):
    """wd = 0.5 alone moves the first step: 0.95; then up is down: at 0.45, -0.55 + 0.475."""
    left = run({"name": "fedsam", "rho": 0.5}, FLAT, local=local(weight_decay=0.5), rounds=1)
    assert left.x == near([1.0, 0.9575])


def test_fedsam_decays_where_it_is(run):
    """wd = 0.5, at y.  0: -1.5 + 0.5: 1.1; at 0.6, -1.4 + 0.55: 1.185.

    1: 8 + 0.5: 0.15; at 0.65, 4.6 + 0.075: -0.3175.  x = 0.8675 / 2.
    """
    left = run({"name": "fedsam", "rho": 0.5}, local=local(weight_decay=0.5), rounds=1)
    assert left.x[1] == near(0.43375)


def test_fedsam_clips_both_gradients(run):
    """At most 1.2 long: the ascent is as long as ever, the second gradient at most 1.2.

    0: -1.5 -> -1.2: 1.12; at 0.62, -1.38 -> -1.2: 1.24.  1: 0.88 -> 0.76.  x = 1.
    With 1.4: 0: 1.14; at 0.64, -1.36: 1.276.  1: 0.86 -> 0.72.
    """
    fedsam = {"name": "fedsam", "rho": 0.5}
    assert run(fedsam, local=local(clip=1.2), rounds=1).x[1] == near(1.0)
    assert run(fedsam, local=local(clip=1.4), rounds=1).x[1] == near(0.998)


def test_fedsam_server_lr(run):
    """1 - 0.5 x 0.4975."""
    left = run({"name": "fedsam", "rho": 0.5, "server_lr": 0.5}, rounds=1)
    assert left.x[1] == near(0.75125)


def test_mofedsam(run):
    """rho = alpha = 0.5: d = 0.5 g_SAM + 0.5 Delta.

    0: -0.75: 1.075; at 0.575, -0.7125: 1.14625.  1: 4: 0.6; at 1.1, 3.2: 0.28.
    D = 1 - 0.713125 = 0.286875, Delta = D / 0.2 = 1.434375; both add 0.7171875.
    0: at 0.213125, -0.8934375: -0.17625: 0.73075; at 0.23075, -0.884625: -0.1674375: 0.74749375.
    1: at 1.213125, 3.42625: 4.1434375: 0.29878125; at 0.79878125, 2.5975625: 3.31475: -0.03269375.
    D = 0.713125 - 0.3574, Delta = 1.778625.
    """
    left = run({"name": "mofedsam", "rho": 0.5, "alpha": 0.5})
    assert left.x == near([1.0, 0.713125, 0.3574])
    assert left.server("momentum") == near([0.0, 1.434375, 1.778625])


def test_mofedsam_divides_by_the_steps_and_the_rate_that_made_it(run):
    """rho = alpha = 0.5, K = 1 and 2, eta = 0.1 and then 0.05.

    0: 1.075.  1: 0.6 -> 0.28.  x = 0.6775; Delta = (-0.075 / 0.1 + 0.72 / 0.2) / 2 = 1.425.
    Both add 0.7125.  0: at 0.1775, -0.91125: -0.19875: 0.6874375.
    1: at 1.1775, 3.355: 4.0675: 0.474125; at 0.974125, 2.94825: 3.66075: 0.2910875.
    Delta = (-0.0099375 / 0.05 + 0.3864125 / 0.1) / 2.
    """
    left = run({"name": "mofedsam", "rho": 0.5, "alpha": 0.5}, UNEQUAL, local=epoch(lr_decay=0.5))
    assert left.x == near([1.0, 0.6775, 0.4892625])
    assert left.server("momentum") == near([0.0, 1.425, 1.8326875])


def test_mofedsam_norm_client(run):
    """The same round 0; D = 0.3225: 0 adds 0.5 x 0.3225 / 0.05 = 3.225, 1 half as much.

    0: 2.31375: 0.5618125.  1: 3.355 + 1.6125 = 4.9675: 0.429125;
    at 0.929125, 2.85825 + 1.6125 = 4.47075: 0.2055875.  D = 0.6775 - 0.3837.
    """
    fields = {"name": "mofedsam", "rho": 0.5, "alpha": 0.5, "norm": "client"}
    left = run(fields, UNEQUAL, local=epoch(lr_decay=0.5))
    assert left.x == near([1.0, 0.6775, 0.3837])
    assert left.server("momentum") == near([0.0, 0.3225, 0.2938])


def test_mofedsam_weight_decay(run):
    """wd = 0.5, unscaled, at y; Delta holds it.

    0: -0.75 + 0.5: 1.025; at 0.525, -0.7375 + 0.5125: 1.0475.
    1: 4 + 0.5: 0.55; at 1.05, 3.1 + 0.275: 0.2125.  D = 0.37.
    """
    left = run(
        {"name": "mofedsam", "rho": 0.5, "alpha": 0.5}, local=local(weight_decay=0.5), rounds=1
    )
    assert left.x[1] == near(0.63)
    assert left.server("momentum")[1] == near(1.85)
