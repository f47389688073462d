"""FedSAM and its kind by hand: the gradient is taken a step uphill, here of 0.5 by its sign."""

import numpy as np
import pytest

from tests.algorithms.by_hand.quadratic import UNEQUAL, epoch, local, near, replay
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


def test_fedgamma(run):
    """rho = 0.5.  Round 0 is FedSAM's: 1.285 and -0.28, x = 0.5025.

    c_0 = -0.285 / 0.2 = -1.425, c_1 = 1.28 / 0.2 = 6.4, c = 2.4875.
    0 adds 3.9125: -1.9975 + 3.9125 = 1.915: 0.311; -2.189 + 3.9125 = 1.7235: 0.13865.
    1 adds -3.9125: 6.01 - 3.9125 = 2.0975: 0.29275; 5.171 - 3.9125 = 1.2585: 0.1669.
    c_0 = -3.9125 + 0.36385 / 0.2, c_1 = 3.9125 + 0.3356 / 0.2.
    """
    left = run({"name": "fedgamma", "rho": 0.5})
    assert left.x == near([1.0, 0.5025, 0.152775])
    assert left.server("c") == near([0.0, 2.4875, 1.748625])
    assert left.client("c") == near([-2.09325, 5.5905])


def test_fedspeed(run):
    """mu = 0.1, rho = alpha = 0.5: the mean of g at y and at 0.5 uphill.

    0: -1.25: 1.125; -1.125 + 0.0125 = -1.1125: 1.23625, l_0 = -0.023625.
    1: 7: 0.3; 4.2 - 0.07 = 4.13: -0.113, l_1 = 0.1113.
    x = 0.561625 - 10 x 0.0438375 = 0.12325.
    0: -2.12675 + 0.023625: 0.3335625; -1.9164375 + 0.023625 + 0.02103125: 0.520740625.
    1: 3.493 - 0.1113: -0.21492; 2.14032 - 0.1113 - 0.033817: -0.4144403.
    l_0 = -0.023625 - 0.0397490625, l_1 = 0.1113 + 0.05376903; x = 0.0531501625 - 0.5084748375.
    """
    left = run({"name": "fedspeed", "rho": 0.5, "alpha": 0.5})
    assert left.x == near([1.0, 0.12325, -0.455324675])
    assert left.client("l") == near([-0.0633740625, 0.16506903])


@pytest.mark.parametrize(
    ("server", "x", "dual"),
    [
        ("all", [1.0, 1.42525, -0.7466885], 0.1542459),
        ("cohort", [1.0, 1.567, -1.698224], 0.1632612),
    ],
)
def test_fedspeed_counts_the_duals_of_all_or_of_the_cohort(run, server, x, dual):
    """rho = 0.5.  0 alone: -1.5: 1.15; -1.35 + 0.015: 1.2835, l_0 = -0.02835.

    x = 1.2835 + 10 x 0.02835 / 2 = 1.42525; or 1.2835 + 0.2835 = 1.567.
    1 alone.  From 1.42525: 9.701: 0.45515; 5.8206 - 0.09701: -0.117209, l_1 = 0.1542459;
    x = -0.117209 - 5 (l_1 + l_0).
    From 1.567: 10.268: 0.5402; 6.1608 - 0.10268: -0.065612, l_1 = 0.1632612;
    x = -0.065612 - 10 l_1.
    """
    fields = {"name": "fedspeed", "rho": 0.5, "server": server}
    left = run(fields, cohort=replay([0], [1]))
    assert left.x == near(x)
    assert left.client("l") == near([-0.02835, dual])


def test_fedspeed_ascends_by_the_gradient_itself(run):
    """rho = 0.5.  0: at 0.5, -1.5: 1.15; at 0.725, -1.275 + 0.015: 1.276.

    1: at 4, 18: -0.8; g = -1.2, at -1.4: -3.6 - 0.18: -0.422.  x = 0.427 - 10 x 0.0573.
    """
    left = run({"name": "fedspeed", "rho": 0.5, "normalised": False}, rounds=1)
    assert left.x[1] == near(-0.146)
    assert left.client("l") == near([-0.0276, 0.1422])


def test_fedsmoo(run):
    """rho = 0.5, alpha = 0.1.  0 alone: u = -1: e = -0.5, m_0 = -0.5; -1.5: 1.15.

    u = -0.85 + 0.5 = -0.35: e = -0.5, m_0 = -1; -1.35 + 0.015: 1.2835.  l_0 = -0.02835.
    w_0 = -1 + 0.5: s = -0.5; x = 1.2835 + 0.14175 = 1.42525.
    Both.  0: u = -0.57475 + 1 + 0.5 > 0: e = 0.5, m_0 = -1 + 0.5 + 0.5 = 0;
    -0.07475 + 0.02835: 1.42989; u = -0.57011 + 0.5 < 0: e = -0.5, m_0 = 0 - 0.5 + 0.5 = 0;
    -1.07011 + 0.02835 + 0.000464: 1.5340196.
    1: u = 7.701 + 0.5: e = 0.5, m_1 = 1; 9.701: 0.45515; u = 3.8206 - 1 + 0.5: e = 0.5, m_1 = 2;
    5.8206 - 0.09701: -0.117209.
    w = 0.5 and 1.5: s = 0.5.  l_0 = -0.02835 - 0.01087696, l_1 = 0.1542459.
    x = 0.7084053 - 5 x 0.11501894.
    """
    left = run({"name": "fedsmoo", "rho": 0.5}, cohort=replay([0], [0, 1]))
    assert left.x == near([1.0, 1.42525, 0.1333106])
    assert left.server("s") == near([0.0, -0.5, 0.5])
    assert left.client("m") == near([0.0, 2.0])
    assert left.client("l") == near([-0.03922696, 0.1542459])


@pytest.mark.parametrize(("simplified", "s"), [(False, 0.0), (True, -0.5)])
def test_fedsmoo_sends_the_dual_with_or_without_its_last_change(run, simplified, s):
    """Round 0: both ascend twice along their own gradients: m = -1 and 1, which cancel out.

    Round 1: 0 goes on to -2; 1 steps over its minimum, e = 0.5 and -0.5: m_1 = 1.
    w = -1.5 and 1.5, which cancel out again; or -2 and 1.
    """
    left = run({"name": "fedsmoo", "rho": 0.5, "simplified": simplified})
    assert left.server("s") == near([0.0, 0.0, s])
    assert left.client("m") == near([-2.0, 1.0])


@pytest.mark.parametrize(("source", "last"), [("own", 0.37564275), ("previous", 0.69564275)])
def test_fedlesam(run, source, last):
    """rho = 0.5.  Round 0 is FedAvg's: x = 0.615, below the 1 that both received.

    0 alone: e = 0.5: -0.885: 0.7035; -0.7965: 0.78315 = x.
    0: from 0.615 up, e = -0.5: -1.71685: 0.954835; -1.545165: 1.1093515.
    1: it received 1 last, e = 0.5: 7.1326: 0.06989; 4.27956: -0.358066.
    With the model of the last round, e = -0.5: 3.1326: 0.46989; 1.87956: 0.281934.
    """
    cohort = replay([0, 1], [0], [0, 1])
    left = run({"name": "fedlesam", "rho": 0.5, "source": source}, cohort=cohort, rounds=3)
    assert left.x == near([1.0, 0.615, 0.78315, last])


def test_fedlesam_of_a_client_that_comes_late(run):
    """It has nothing to compare with: as FedAvg's from 1.19, where 0 alone arrived."""
    left = run({"name": "fedlesam", "rho": 0.5}, cohort=replay([0], [1]))
    assert left.x == near([1.0, 1.19, 0.36 * 1.19 - 0.32])


def test_fedlesam_s(run):
    """rho = 0.5.  Round 0 is SCAFFOLD's: x = 0.615, c_0 = -0.95, c_1 = 4.8, c = 1.925.

    Round 1, e = 0.5.  0 adds 2.875: -0.885 + 2.875 = 1.99: 0.416; -1.084 + 2.875 = 1.791: 0.2369.
    1 adds -2.875: 6.46 - 2.875 = 3.585: 0.2565; 5.026 - 2.875 = 2.151: 0.0414.
    c_0 = -2.875 + 0.3781 / 0.2, c_1 = 2.875 + 0.5736 / 0.2.
    """
    left = run({"name": "fedlesam_s", "rho": 0.5})
    assert left.x == near([1.0, 0.615, 0.13915])
    assert left.server("c") == near([0.0, 1.925, 2.37925])
    assert left.client("c") == near([-0.9845, 5.743])


def test_fedlesam_d(run):
    """rho = 0.5.  Round 0 is FedDyn's: x = 0.235, l_0 = -0.0189, l_1 = 0.0954.

    Round 1, e = 0.5.  0: -1.265 + 0.0189 = -1.2461: 0.35961;
    -1.14039 + 0.0189 + 0.012461 = -1.109029: 0.4705129.
    1: 4.94 - 0.0954 = 4.8446: -0.24946; 3.00216 - 0.0954 - 0.048446 = 2.858314: -0.5352914.
    l_0 = -0.0189 - 0.02355129, l_1 = 0.0954 + 0.07702914; x = -0.03238925 - 5 x 0.12997785.
    """
    left = run({"name": "fedlesam_d", "rho": 0.5})
    assert left.x == near([1.0, 0.235, -0.6822785])
    assert left.client("l") == near([-0.04245129, 0.17242914])
