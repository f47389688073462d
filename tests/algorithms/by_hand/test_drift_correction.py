"""SCAFFOLD and its kind by hand: what a client remembers straightens its local path."""

import pytest

from tests.algorithms.by_hand.quadratic import THREE, local, near, replay


def test_scaffold_option_2(run):
    """Round 0 is FedAvg's; c_0 = -0.19 / 0.2 = -0.95, c_1 = 0.96 / 0.2 = 4.8, c = 1.925.

    Round 1.  0 adds c - c_0 = 2.875: d = 1.49, 1.341: 0.466 -> 0.3319, delta 0.2831.
    1 adds -2.875: d = 1.585, 0.951: 0.4565 -> 0.3614, delta 0.2536.  x = 0.615 - 0.26835.
    c_0 = -0.95 - 1.925 + 1.4155 = -1.4595, c_1 = 4.8 - 1.925 + 1.268 = 4.143.
    """
    left = run({"name": "scaffold"})
    assert left.x == near([1.0, 0.615, 0.34665])
    assert left.server("c") == near([0.0, 1.925, 1.34175])
    assert left.client("c") == near([-1.4595, 4.143])


def test_scaffold_option_1(run):
    """c_0 = g0(1) = -1, c_1 = g1(1) = 6, c = 2.5.

    Round 1.  0 adds 3.5: d = 2.115, 1.9035: 0.4035 -> 0.21315, delta 0.40185.
    1 adds -3.5: d = 0.96, 0.576: 0.519 -> 0.4614, delta 0.1536.  x = 0.615 - 0.277725.
    c_0 = g0(0.615) = -1.385, c_1 = g1(0.615) = 4.46.
    """
    left = run({"name": "scaffold", "option": 1})
    assert left.x == near([1.0, 0.615, 0.337275])
    assert left.server("c") == near([0.0, 2.5, 1.5375])
    assert left.client("c") == near([-1.385, 4.46])


def test_scaffold_weighs_delta_but_not_dc(run):
    """x as FedAvg's by examples; c the plain mean all the same."""
    left = run({"name": "scaffold"}, weights="examples", rounds=1)
    assert left.x[1] == near(0.3275)
    assert left.server("c")[1] == near(1.925)


@pytest.mark.parametrize(("option", "total"), [(2, 3.85), (1, 5.0)])
def test_scaffold_divides_by_the_population(run, option, total):
    """Two of three clients: c = sum of c_i / 3; the absent client keeps nothing."""
    left = run({"name": "scaffold", "option": option}, THREE, cohort=replay([0, 1]), rounds=1)
    assert left.server("c")[1] == near(total / 3)
    assert left.clients[2] is None


def test_scaffold_option_2_holds_the_decay(run):
    """wd = 0.5: (x - y) / (K eta) of FedAvg's -0.0925 and 1.0075, nothing subtracted."""
    left = run({"name": "scaffold"}, local=local(weight_decay=0.5), rounds=1)
    assert left.client("c") == near([-0.4625, 5.0375])
    assert left.server("c")[1] == near(2.2875)


def test_scaffold_option_1_does_not_hold_the_decay(run):
    """grad f_i alone, whatever the decay and the clipping are."""
    decayed = local(weight_decay=0.5, clip=0.25)
    left = run({"name": "scaffold", "option": 1}, local=decayed, rounds=1)
    assert left.client("c") == near([-1.0, 6.0])


def test_feddyn(run):
    """alpha = 0.1: d = g(y) - l_i + 0.1 (y - x).

    Round 0.  0: -1: 1.1; -0.9 + 0.01 = -0.89: 1.189.  1: 6: 0.4; 3.6 - 0.06 = 3.54: 0.046.
    D = 1 - 0.6175.  l_0 = -0.1 x 0.189 = -0.0189, l_1 = 0.1 x 0.954 = 0.0954.
    h = -(0.1 / 2) (0.189 - 0.954) = 0.03825 = mean l; x = 0.6175 - 0.3825 = 0.235.
    Round 1.  0: -1.765 + 0.0189 = -1.7461: 0.40961;
    -1.59039 + 0.0189 + 0.017461 = -1.554029: 0.5650129.
    1: 2.94 - 0.0954 = 2.8446: -0.04946; 1.80216 - 0.0954 - 0.028446 = 1.678314: -0.2172914.
    l_0 = -0.0189 - 0.03300129, l_1 = 0.0954 + 0.04522914; h = 0.044363925.
    x = (0.5650129 - 0.2172914) / 2 - 0.44363925 = 0.17386075 - 0.44363925.
    """
    left = run({"name": "feddyn"})
    assert left.x == near([1.0, 0.235, -0.2697785])
    assert left.server("h") == near([0.0, 0.03825, 0.044363925])
    assert left.client("l") == near([-0.05190129, 0.14062914])


def test_feddyn_weighs_the_mean_but_not_the_sum(run):
    """D = (1 x -0.189 + 3 x 0.954) / 4 = 0.66825; h as above: x = 0.33175 - 0.3825."""
    left = run({"name": "feddyn"}, weights="examples", rounds=1)
    assert left.server("h")[1] == near(0.03825)
    assert left.x[1] == near(-0.05075)


def test_feddyn_divides_by_the_population(run):
    """Two of three clients: h = (0.0954 - 0.0189) / 3 = 0.0255, x = 0.6175 - 0.255 = 0.3625.

    Round 1.  0: -1.6375 + 0.0189 = -1.6186: 0.52436;
    -1.47564 + 0.0189 + 0.016186 = -1.440554: 0.6684154.
    1: 3.45 - 0.0954 = 3.3546: 0.02704; 2.10816 - 0.0954 - 0.033546 = 1.979214: -0.1708814.
    l_0 = -0.0189 - 0.03059154, l_1 = 0.0954 + 0.05333814, h = 0.0992466 / 3 = 0.0330822.
    x = (0.6684154 - 0.1708814) / 2 - 0.330822.
    """
    left = run({"name": "feddyn"}, THREE, cohort=replay([0, 1], [0, 1]))
    assert left.x == near([1.0, 0.3625, -0.082055])
    assert left.server("h") == near([0.0, 0.0255, 0.0330822])
    assert [float(state.l) for state in left.clients[:2]] == near([-0.04949154, 0.14873814])
    assert left.clients[2] is None


def test_feddyn_server_lr(run):
    """It scales D alone: 1 - 0.5 x 0.3825 - 0.3825."""
    left = run({"name": "feddyn", "server_lr": 0.5}, rounds=1)
    assert left.x[1] == near(0.42625)


def test_feddyn_holds_the_decay(run):
    """wd = 0.5.  0: -0.5: 1.05; -0.95 + 0.005 + 0.525 = -0.42: 1.092.

    1: 6.5: 0.35; 3.4 - 0.065 + 0.175 = 3.51: -0.001.  l_0 = -0.0092, l_1 = 0.1001.
    x = 1.091 / 2 - 0.4545.
    """
    left = run({"name": "feddyn"}, local=local(weight_decay=0.5), rounds=1)
    assert left.client("l") == near([-0.0092, 0.1001])
    assert left.x[1] == near(0.091)


def test_adabest(run):
    """mu = 0.1, beta = 0.5.  Round 0 arrives where FedAvg does: xbar = 0.615.

    x = 0.615 - 0.5 (1 - 0.615) = 0.4225; h_0 = 0.1 x -0.19 = -0.019, h_1 = 0.096.
    Round 1.  0: -1.5775 + 0.019 = -1.5585: 0.57835; -1.42165 + 0.019 = -1.40265: 0.718615.
    1: 3.69 - 0.096 = 3.594: 0.0631; 2.2524 - 0.096 = 2.1564: -0.15254.
    xbar = (0.718615 - 0.15254) / 2 = 0.2830375, x = xbar - 0.5 (0.615 - 0.2830375).
    h_0 = -0.019 - 0.0296115, h_1 = 0.096 + 0.057504.
    """
    left = run({"name": "adabest", "mu": 0.1, "beta": 0.5})
    assert left.server("xbar") == near([1.0, 0.615, 0.2830375])
    assert left.x == near([1.0, 0.4225, 0.11705625])
    assert left.client("h") == near([-0.0486115, 0.153504])
    assert left.client("seen") == [2, 2]


def test_adabest_of_a_client_that_returns_after_two_rounds(run):
    """Round 0 as above.  Round 1, client 1 alone: xbar = -0.15254.

    x = -0.15254 - 0.5 (0.615 + 0.15254) = -0.53631, h_1 = 0.153504.
    Round 2, client 0 alone: -2.53631 + 0.019 = -2.51731: -0.284579;
    -2.284579 + 0.019 = -2.265579: -0.0580211 = xbar.
    x = -0.0580211 - 0.5 (-0.15254 + 0.0580211) = -0.01076165.
    It was seen in round 1 and now is round 3: h_0 = -0.019 / 2 + 0.1 (-0.53631 + 0.0580211).
    """
    left = run(
        {"name": "adabest", "mu": 0.1, "beta": 0.5}, cohort=replay([0, 1], [1], [0]), rounds=3
    )
    assert left.server("xbar") == near([1.0, 0.615, -0.15254, -0.0580211])
    assert left.x == near([1.0, 0.4225, -0.53631, -0.01076165])
    assert left.client("h") == near([-0.05732889, 0.153504])
    assert left.client("seen") == [3, 2]


def test_adabest_of_a_client_that_comes_late(run):
    """Never seen counts as round 0: nothing to divide, h_1 = 0.1 (x - y) in round 2.

    Round 0, client 0 alone: xbar = 1.19, x = 1.19 - 0.5 (1 - 1.19) = 1.285.
    Round 1: 7.14: 0.571; 4.284: 0.1426 = xbar; x = 0.1426 - 0.5 (1.19 - 0.1426).
    """
    left = run({"name": "adabest", "mu": 0.1, "beta": 0.5}, cohort=replay([0], [1]))
    assert left.x == near([1.0, 1.285, -0.3811])
    assert left.client("h") == near([-0.019, 0.11424])
    assert left.client("seen") == [1, 2]


def test_adabest_server_lr(run):
    """It makes xbar: 1 - 0.5 x 0.385 = 0.8075, x = 0.8075 - 0.5 x 0.1925."""
    left = run({"name": "adabest", "beta": 0.5, "server_lr": 0.5}, rounds=1)
    assert left.server("xbar")[1] == near(0.8075)
    assert left.x[1] == near(0.71125)


def test_adabest_weighs_by_examples(run):
    """D = 0.6725: xbar = 0.3275, x = 0.3275 - 0.5 x 0.6725; h_i is the client's own."""
    left = run({"name": "adabest", "mu": 0.1, "beta": 0.5}, weights="examples", rounds=1)
    assert left.x[1] == near(-0.00875)
    assert left.client("h") == near([-0.019, 0.096])


def test_adabest_holds_the_decay(run):
    """wd = 0.5 arrives where FedAvg does: x - y = -0.0925 and 1.0075."""
    left = run({"name": "adabest", "mu": 0.1}, local=local(weight_decay=0.5), rounds=1)
    assert left.client("h") == near([-0.00925, 0.10075])


def test_fedvarp(run):
    """Round 0: u = -0.19 and 0.96, mean 0.385.  Round 1, client 1 alone: 0.615 -> -0.0986.

    The step is (0.7136 - 0.96) + 0.385 = 0.1386; then u_1 = 0.7136, mean 0.2618.
    """
    left = run({"name": "fedvarp"}, cohort=replay([0, 1], [1]))
    assert left.x == near([1.0, 0.615, 0.4764])
    assert left.server("u") == near([0.0, 0.385, 0.2618])
    assert left.client("u") == near([-0.19, 0.7136])


def test_fedvarp_divides_by_the_population(run):
    """Two of three clients: mean(D) = 0.385 is the step, (0.96 - 0.19) / 3 is kept."""
    left = run({"name": "fedvarp"}, THREE, cohort=replay([0, 1]), rounds=1)
    assert left.x[1] == near(0.615)
    assert left.server("u")[1] == near(0.77 / 3)


def test_fedvarp_weighs_all_clients_alike(run):
    """By examples FedAvg would arrive at 0.3275."""
    assert run({"name": "fedvarp"}, weights="examples", rounds=1).x[1] == near(0.615)


def test_fedmoswa(run):
    """rho = 0.2, gamma = 0.5: rates 0.1 and 0.06, together 0.16.

    0: 1.1; 1.1 + 0.054 = 1.154.  1: 0.4; 0.4 - 0.216 = 0.184.  D = 0.331, x = 1 - 1.5 D = 0.5035.
    c = -0.154 / 0.16 = -0.9625 and 0.816 / 0.16 = 5.1; m = 0.5 x 2.06875 = 1.034375.
    Round 1.  0 adds 1.996875: 0.500375: 0.4534625; 0.4503375: 0.42644225.
    1 adds -4.065625: -0.051625: 0.5086625; -0.030975: 0.510521.  D = 0.035018375.
    c_0 = -1.996875 + 0.07705775 / 0.16, c_1 = 4.065625 - 0.007021 / 0.16;
    m = (1.034375 + 1.25323984375) / 2.
    """
    left = run({"name": "fedmoswa", "rho": 0.2, "gamma": 0.5})
    assert left.x == near([1.0, 0.5035, 0.4509724375])
    assert left.client("c") == near([-1.5152640625, 4.02174375])
    assert left.server("m") == near([0.0, 1.034375, 1.143807421875])


def test_fedmoswa_of_a_client_that_comes_late(run):
    """c_i is 0 before, m of the last round: 0 alone gives c_0 = -0.9625, m = -0.48125.

    x = 1 + 1.5 x 0.154 = 1.231.  1: 6.924 - 0.48125 = 6.44275: 0.586725;
    4.3469 - 0.48125 = 3.86565: 0.354786.  c_1 = 0.48125 + 0.876214 / 0.16;
    m = (-0.48125 + c_1) / 2.
    """
    left = run({"name": "fedmoswa", "rho": 0.2, "gamma": 0.5}, cohort=replay([0], [1]))
    assert left.x == near([1.0, 1.231, 1.231 - 1.5 * 0.876214])
    assert left.client("c") == near([-0.9625, 5.9575875])
    assert left.server("m") == near([0.0, -0.48125, 2.73816875])


def test_fedmoswa_weighs_delta_but_not_drift(run):
    """D = (-0.154 + 3 x 0.816) / 4 = 0.5735; m as above."""
    left = run({"name": "fedmoswa", "rho": 0.2, "gamma": 0.5}, weights="examples", rounds=1)
    assert left.x[1] == near(0.13975)
    assert left.server("m")[1] == near(1.034375)
