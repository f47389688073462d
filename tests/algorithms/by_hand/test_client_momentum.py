"""FedCM, FedADC and FedMIM by hand: clients follow what the server moved along."""

from tests.algorithms.by_hand.quadratic import UNEQUAL, epoch, local, near, replay


def test_fedcm(run):
    """alpha = 0.5: d = 0.5 g + 0.5 Delta, Delta = 0 at first.

    0: -0.5: 1.05; -0.475: 1.0975.  1: 3: 0.7; 2.4: 0.46.  D = 1 - 0.77875 = 0.22125,
    Delta = D / (0.1 x 2) = 1.10625; both add 0.553125.
    0: -0.610625: -0.0575: 0.7845; -0.60775: -0.054625: 0.7899625.
    1: 2.5575: 3.110625: 0.4676875; 1.935375: 2.4885: 0.2188375.
    D = 0.77875 - 0.5044 = 0.27435, Delta = 1.37175.
    """
    left = run({"name": "fedcm", "alpha": 0.5})
    assert left.x == near([1.0, 0.77875, 0.5044])
    assert left.server("momentum") == near([0.0, 1.10625, 1.37175])


def test_fedcm_divides_by_the_steps_and_the_rate_that_made_it(run):
    """alpha = 0.5, K = 1 and 2, eta = 0.1 and then 0.05.

    0: 1.05.  1: 0.7 -> 0.46.  x = 0.755; Delta = (-0.05 / 0.1 + 0.54 / 0.2) / 2 = 1.1.
    Both add 0.55.  0: -0.6225 + 0.55 = -0.0725: 0.758625.
    1: 2.51 + 0.55 = 3.06: 0.602; 2.204 + 0.55 = 2.754: 0.4643.
    x = 0.6114625; Delta = (-0.003625 / 0.05 + 0.2907 / 0.1) / 2.
    """
    left = run({"name": "fedcm", "alpha": 0.5}, UNEQUAL, local=epoch(lr_decay=0.5))
    assert left.x == near([1.0, 0.755, 0.6114625])
    assert left.server("momentum") == near([0.0, 1.1, 1.41725])


def test_fedcm_norm_client(run):
    """The same round 0, D = 0.245 is sent; 0 divides by its 0.05 x 1, 1 by its 0.05 x 2.

    0 adds 2.45: 1.8275: 0.755 - 0.091375 = 0.663625.
    1 adds 1.225: 3.735: 0.56825; 2.1365 + 1.225 = 3.3615: 0.400175.
    x = 0.5319, D = 0.2231.
    """
    fields = {"name": "fedcm", "alpha": 0.5, "norm": "client"}
    left = run(fields, UNEQUAL, local=epoch(lr_decay=0.5))
    assert left.x == near([1.0, 0.755, 0.5319])
    assert left.server("momentum") == near([0.0, 0.245, 0.2231])


def test_fedcm_weighs_by_examples(run):
    """alpha = 0.5.  D = (-0.0975 + 3 x 0.54) / 4 = 0.380625, Delta = D / 0.2 = 1.903125."""
    left = run({"name": "fedcm", "alpha": 0.5}, weights="examples", rounds=1)
    assert left.x[1] == near(0.619375)
    assert left.server("momentum")[1] == near(1.903125)


def test_fedcm_server_lr(run):
    """eta_g = 0.5 moves x alone: x = 1 - 0.110625, Delta = 1.10625.

    0: -0.5553125 + 0.553125 = -0.0021875: 0.88959375; -0.002078125: 0.8898015625.
    1: 2.77875 + 0.553125 = 3.331875: 0.5561875; 2.6655: 0.2896375.  D = 0.29965546875.
    """
    left = run({"name": "fedcm", "alpha": 0.5, "server_lr": 0.5})
    assert left.x == near([1.0, 0.889375, 0.739547265625])
    assert left.server("momentum") == near([0.0, 1.10625, 1.49827734375])


def test_fedcm_weight_decay(run):
    """wd = 0.5 is scaled by no alpha, and Delta holds it.

    0: -0.5 + 0.5: 1 stays.  1: 3.5: 0.65; 2.3 + 0.325: 0.3875.  D = 0.30625, Delta = 1.53125.
    """
    left = run({"name": "fedcm", "alpha": 0.5}, local=local(weight_decay=0.5), rounds=1)
    assert left.x[1] == near(0.69375)
    assert left.server("momentum")[1] == near(1.53125)


def test_fedcm_of_a_client_that_made_none_of_it(run):
    """alpha = 0.5.  Client 0 alone: x = 1.0975, Delta = -0.0975 / 0.2 = -0.4875.

    Client 1: 3.195 - 0.24375 = 2.95125: 0.802375; 2.361: 0.566275; Delta = 0.531225 / 0.2.
    """
    left = run({"name": "fedcm", "alpha": 0.5}, cohort=replay([0], [1]))
    assert left.x == near([1.0, 1.0975, 0.566275])
    assert left.server("momentum") == near([0.0, -0.4875, 2.656125])


def test_fedadc(run):
    """beta = 0.9, beta_local = 1: d = g + m / K.  m = D / eta = 3.85, x = 1 - 0.1 x 3.85.

    Both add 1.925.  0: 0.54: 0.561; -1.439 + 1.925 = 0.486: 0.5124.
    1: 6.385: -0.0235; 1.906 + 1.925 = 3.831: -0.4066.  D = 0.615 - 0.0529 = 0.5621.
    m = 5.621 - 0.1 x 3.85 = 5.236, x = 0.615 - 0.5236.
    """
    left = run({"name": "fedadc"})
    assert left.server("m") == near([0.0, 3.85, 5.236])
    assert left.x == near([1.0, 0.615, 0.0914])


def test_fedadc_beta_local(run):
    """beta = 0.5, beta_local = 0.2: both add 0.2 x 3.85 / 2 = 0.385.

    0: -1: 0.715; -0.9: 0.805.  1: 4.845: 0.1305; 2.907: -0.1602.  D = 0.2926.
    m = 2.926 + 0.3 x 3.85 = 4.081, x = 0.615 - 0.4081.
    """
    left = run({"name": "fedadc", "beta": 0.5, "beta_local": 0.2})
    assert left.server("m") == near([0.0, 3.85, 4.081])
    assert left.x == near([1.0, 0.615, 0.2069])


def test_fedadc_nesterov(run):
    """beta = 0.9.  m = 3.85: -0.1925 before each gradient.

    0: 0.4225, -1.5775: 0.58025; 0.38775, -1.61225: 0.548975.
    1: 0.4225, 3.69: 0.0535; -0.139, 1.444: -0.2834.  D = 0.615 - 0.1327875 = 0.4822125.
    m = 4.822125 - 0.385 = 4.437125, x = 0.615 - 0.4437125.
    """
    left = run({"name": "fedadc", "nesterov": True})
    assert left.server("m") == near([0.0, 3.85, 4.437125])
    assert left.x == near([1.0, 0.615, 0.1712875])


def test_fedadc_nesterov_decays_at_the_moved_point(run):
    """wd = 0.5: D = 0.4575, m = 4.575; -0.22875 before each gradient of 1.5 p - 2 and 4.5 p + 2.

    0: 0.31375, -1.529375: 0.4666875; 0.2379375, -1.64309375: 0.402246875.
    1: 0.31375, 3.411875: -0.0274375; -0.2561875, 0.84715625: -0.340903125.
    """
    left = run({"name": "fedadc", "nesterov": True}, local=local(weight_decay=0.5))
    assert left.server("m")[1] == near(4.575)
    # D = 0.5425 - 0.030671875 = 0.511828125 and m = 5.11828125 - 0.4575.
    assert left.server("m")[2] == near(4.66078125)
    assert left.x == near([1.0, 0.5425, 0.076421875])


def test_fedadc_divides_by_the_rate_of_the_round(run):
    """beta = 0.5, eta = 0.1 and then 0.05: m = 3.85, both add 1.925.

    0: 0.54: 0.588; -1.412 + 1.925 = 0.513: 0.56235.  1: 6.385: 0.29575; 5.108: 0.04035.
    D = 0.615 - 0.30135 = 0.31365, m = 6.273 - 0.5 x 3.85 = 4.348, x = 0.615 - 0.05 x 4.348.
    """
    left = run({"name": "fedadc", "beta": 0.5}, local=local(lr_decay=0.5))
    assert left.server("m") == near([0.0, 3.85, 4.348])
    assert left.x == near([1.0, 0.615, 0.3976])


def test_fedadc_divides_by_the_clients_own_steps(run):
    """beta = 0.9, K = 1 and 2.  D = (-0.1 + 0.96) / 2 = 0.43, m = 4.3, x = 0.57.

    0 adds 4.3: 2.87: 0.283.  1 adds 2.15: 6.43: -0.073; 3.858: -0.4588.
    D = 0.57 + 0.0879 = 0.6579, m = 6.579 - 0.43 = 6.149.
    """
    left = run({"name": "fedadc"}, UNEQUAL, local=epoch())
    assert left.server("m") == near([0.0, 4.3, 6.149])
    assert left.x == near([1.0, 0.57, -0.0449])


def test_fedadc_server_lr(run):
    """beta = eta_g = 0.5, eta = 0.1 and then 0.05: x = 1 - 0.5 x 0.1 x 3.85 = 0.8075.

    0: -1.1925 + 1.925 = 0.7325: 0.770875; 0.695875: 0.73608125.
    1: 7.155: 0.44975; 5.724: 0.16355.  D = 0.357684375.
    m = 7.1536875 - 1.925 = 5.2286875, x = 0.8075 - 0.5 x 0.05 x m.
    """
    fields = {"name": "fedadc", "beta": 0.5, "server_lr": 0.5}
    left = run(fields, local=local(lr_decay=0.5))
    assert left.server("m") == near([0.0, 3.85, 5.2286875])
    assert left.x == near([1.0, 0.8075, 0.6767828125])


ONE_STEP = local(steps=1)
MIM = {"name": "fedmim", "alpha": [0.5, 0.3], "beta": [0.2, 0.1]}  # A = 0.2


def test_fedmim(run):
    """K = 1, steps of A eta = 0.02.  0: 1.02, 1: 0.88: x = 0.95, d = (0.05, 0).

    y1 = 0.95 - 0.025, y2 = 0.95 - 0.01 = 0.94.  0: 0.925 + 0.0212; 1: 0.925 - 0.1152.
    x = 0.878, d = (0.072, 0.05), the newest first: y1 = 0.878 - 0.036 - 0.015 = 0.827,
    y2 = 0.878 - 0.0144 - 0.005 = 0.8586.  0: 0.827 + 0.022828; 1: 0.827 - 0.108688.
    """
    left = run(MIM, local=ONE_STEP, rounds=3)
    assert left.x == near([1.0, 0.95, 0.878, 0.78407])
    assert left.server("past.0") == near([1.0, 1.0, 0.95, 0.878])
    assert left.server("past.1") == near([1.0, 1.0, 1.0, 0.95])


def test_fedmim_divides_by_the_clients_current_steps(run):
    """K = 1 and 2.  0: 1.02.  1: 0.88 -> 0.88 - 0.02 x 5.52 = 0.7696.  x = 0.8948.

    x_0 - x_1 = 0.1052.  0, d = 0.1052: y1 = 0.8422, y2 = 0.87376: 0.8422 + 0.0225248.
    1, d = 0.0526 in both steps: y1 = 0.8685, y2 = 0.88428: 0.8685 - 0.1107424 = 0.7577576;
    y1 = 0.7314576, y2 = 0.7472376: 0.7314576 - 0.099779008 = 0.631678592.
    """
    left = run(MIM, UNEQUAL, local=epoch())
    assert left.x == near([1.0, 0.8948, (0.8647248 + 0.631678592) / 2])


def test_fedmim_lr_decay(run):
    """As above, with A eta = 0.01 in round 1; the differences keep their size.

    0: 0.8422 + 0.0112624.  1: 0.8685 - 0.0553712 = 0.8131288;
    y1 = 0.7868288, y2 = 0.8026088: 0.7868288 - 0.052104352.
    """
    left = run(MIM, UNEQUAL, local=epoch(lr_decay=0.5))
    assert left.x == near([1.0, 0.8948, (0.8534624 + 0.734724448) / 2])


def test_fedmim_decays_at_the_inner_point_scaled(run):
    """alpha = 0.5, beta = 0.2, wd = 0.5, K = 1, A = 0.5: steps of 0.05.

    0: 1 + 0.05 x 0.5; 1: 1 - 0.05 x 6.5: x = 0.85, d = 0.15, y1 = 0.775, y2 = 0.82.
    0: -1.18 + 0.41 = -0.77: 0.8135.  1: 5.28 + 0.41 = 5.69: 0.4905.
    """
    left = run(
        {"name": "fedmim", "alpha": [0.5], "beta": [0.2]},
        local=local(steps=1, weight_decay=0.5),
    )
    assert left.x == near([1.0, 0.85, 0.652])


def test_fedmim_server_lr(run):
    """eta_g = 0.5, K = 1: x = 1 - 0.5 x 0.05, d = 0.025: y1 = 0.9625, y2 = 0.97.

    0: 0.9625 + 0.0206; 1: 0.9625 - 0.1176.  D = 0.975 - 0.914 = 0.061.
    """
    assert run({**MIM, "server_lr": 0.5}, local=ONE_STEP).x == near([1.0, 0.975, 0.9445])
