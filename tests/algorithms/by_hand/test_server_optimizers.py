"""FedAvgM, FedAdam, FedYogi and FedAdagrad by hand: D = 0.415 x - 0.03 is the server's gradient."""

from math import sqrt

import pytest

from tests.algorithms.by_hand.quadratic import near


def test_fedavgm(run):
    """v = 0.385, x = 0.615; D = 0.225225, v = 0.9 x 0.385 + 0.225225 = 0.571725."""
    left = run({"name": "fedavgm"})
    assert left.server("v") == near([0.0, 0.385, 0.571725])
    assert left.x == near([1.0, 0.615, 0.043275])


def test_fedavgm_nesterov(run):
    """v = 0.385, the step D + 0.9 v = 0.385 + 0.3465 = 0.7315: x = 0.2685.

    D = 0.0814275, v = 0.3465 + 0.0814275 = 0.4279275, the step 0.0814275 + 0.38513475.
    """
    left = run({"name": "fedavgm", "nesterov": True})
    assert left.server("v") == near([0.0, 0.385, 0.4279275])
    assert left.x == near([1.0, 0.2685, -0.19806225])


def test_fedavgm_server_lr(run):
    """beta = eta_g = 0.5.  v = 0.385, x = 1 - 0.1925; D = 0.3051125, v = 0.1925 + D = 0.4976125."""
    left = run({"name": "fedavgm", "beta": 0.5, "server_lr": 0.5})
    assert left.server("v") == near([0.0, 0.385, 0.4976125])
    assert left.x == near([1.0, 0.8075, 0.55869375])


def test_fedadam(run):
    """eta_g = 0.1, tau = 0.0115.  m = 0.1 x -0.385, v = 0.01 x 0.385^2 = 0.0385^2.

    x = 1 - 0.1 x 0.0385 / (0.0385 + 0.0115) = 1 - 0.1 x 0.77 = 0.923.
    D = 0.353045: m = -0.03465 - 0.0353045 = -0.0699545,
    v = 0.0014674275 + 0.01 x 0.124640772025 = 0.00271383522025.
    """
    left = run({"name": "fedadam", "tau": 0.0115})
    assert left.server("m") == near([0.0, -0.0385, -0.0699545])
    assert left.server("v") == near([0.0, 0.00148225, 0.00271383522025])
    last = 0.923 - 0.1 * 0.0699545 / (sqrt(0.00271383522025) + 0.0115)
    assert left.x == near([1.0, 0.923, last])


def test_fedadam_bias_correction(run):
    """tau = 0.115.  m^ = -0.0385 / 0.1 = -0.385, v^ = 0.385^2: x = 1 - 0.1 x 0.385 / 0.5 = 0.923.

    m and v as without it; m^ = -0.0699545 / (1 - 0.81), v^ = 0.00271383522025 / (1 - 0.9801).
    """
    left = run({"name": "fedadam", "tau": 0.115, "bias_correction": True})
    assert left.server("m") == near([0.0, -0.0385, -0.0699545])
    assert left.server("v") == near([0.0, 0.00148225, 0.00271383522025])
    last = 0.923 - 0.1 * (0.0699545 / 0.19) / (sqrt(0.00271383522025 / 0.0199) + 0.115)
    assert left.x == near([1.0, 0.923, last])


def test_fedadam_v0(run):
    """b2 = 0.5: v = 0.5 (0.351775 + 0.148225) = 0.25; tau = 0.27, eta_g = 1.

    x = 1 - 0.0385 / (0.5 + 0.27) = 1 - 0.05.
    """
    fields = {"b2": 0.5, "tau": 0.27, "v0": 0.351775, "server_lr": 1.0}
    left = run({"name": "fedadam", **fields}, rounds=1)
    assert left.server("v") == near([0.351775, 0.25])
    assert left.x == near([1.0, 0.95])


def test_fedyogi_where_v_grows(run):
    """v = 0 is below D^2: v = 0.01 D^2, x = 0.923 as fedadam's.

    0.00148225 is below 0.353045^2: v = 0.00148225 + 0.00124640772025, nothing of it forgotten.
    """
    left = run({"name": "fedyogi", "tau": 0.0115})
    assert left.server("m") == near([0.0, -0.0385, -0.0699545])
    assert left.server("v") == near([0.0, 0.00148225, 0.00272865772025])
    last = 0.923 - 0.1 * 0.0699545 / (sqrt(0.00272865772025) + 0.0115)
    assert left.x == near([1.0, 0.923, last])


def test_fedyogi_where_v_shrinks(run):
    """v0 = 0.25148225 is above D^2 = 0.148225: v = v0 - 0.00148225 = 0.25.

    tau = 0.27, eta_g = 1: x = 1 - 0.0385 / 0.77 = 0.95.  D = 0.36425: m = -0.03465 - 0.036425,
    v = 0.25 - 0.01 x 0.1326780625.
    """
    left = run({"name": "fedyogi", "tau": 0.27, "v0": 0.25148225, "server_lr": 1.0})
    assert left.server("m") == near([0.0, -0.0385, -0.071075])
    assert left.server("v") == near([0.25148225, 0.25, 0.248673219375])
    assert left.x == near([1.0, 0.95, 0.95 - 0.071075 / (sqrt(0.248673219375) + 0.27)])


def test_fedyogi_bias_correction(run):
    """The first round as fedadam's, v being the same."""
    left = run({"name": "fedyogi", "tau": 0.115, "bias_correction": True}, rounds=1)
    assert left.x == near([1.0, 0.923])


def test_fedadagrad(run):
    """b1 = 0: m = -D.  tau = 0.115: v = 0.385^2, x = 1 - 0.1 x 0.385 / 0.5 = 0.923.

    D = 0.353045: v = 0.148225 + 0.124640772025.
    """
    left = run({"name": "fedadagrad", "tau": 0.115})
    assert left.server("m") == near([0.0, -0.385, -0.353045])
    assert left.server("v") == near([0.0, 0.148225, 0.272865772025])
    last = 0.923 - 0.1 * 0.353045 / (sqrt(0.272865772025) + 0.115)
    assert left.x == near([1.0, 0.923, last])


@pytest.mark.parametrize(("v0", "tau"), [(0.0, 0.115), (0.011775, 0.1)])
def test_fedadagrad_momentum_and_v0(run, v0, tau):
    """b1 = 0.5: m = -0.1925; sqrt(v0 + 0.148225) + tau = 0.5: x = 1 - 0.1 x 0.385."""
    left = run({"name": "fedadagrad", "b1": 0.5, "v0": v0, "tau": tau}, rounds=1)
    assert left.server("m") == near([0.0, -0.1925])
    assert left.server("v") == near([v0, v0 + 0.148225])
    assert left.x == near([1.0, 0.9615])
