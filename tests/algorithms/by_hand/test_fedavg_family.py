"""FedAvg and what is near it by hand: other starts, rates, ties to the start and server steps."""

import pytest

from tests.algorithms.by_hand.quadratic import UNEQUAL, epoch, local, near, replay
from tests.algorithms.play import play, softmax_problem, tree


def test_fedavg(run):
    """1 - 0.385 = 0.615; 0.615 - 0.225225 = 0.389775."""
    assert run({"name": "fedavg"}).x == near([1.0, 0.615, 0.389775])


def test_fedavg_weighs_by_examples(run):
    """(1 x -0.19 + 3 x 0.96) / 4 = 0.6725."""
    assert run({"name": "fedavg"}, weights="examples", rounds=1).x == near([1.0, 0.3275])


def test_fedavg_server_lr(run):
    """1 - 0.5 x 0.385."""
    assert run({"name": "fedavg", "server_lr": 0.5}, rounds=1).x == near([1.0, 0.8075])


def test_fedavg_weight_decay(run):
    """With wd = 0.5 the steps follow 1.5 y - 2 and 4.5 y + 2.

    0: 1 -> 1.05 -> 1.0925; 1: 1 -> 0.35 -> -0.0075; x = (1.0925 - 0.0075) / 2.
    """
    assert run({"name": "fedavg"}, local=local(weight_decay=0.5), rounds=1).x[1] == near(0.5425)


def test_fedavg_lr_decay(run):
    """Round 1 at eta = 0.05 from 0.615: 0 goes 0.68425 -> 0.7500375, 1 goes 0.392 -> 0.2136."""
    left = run({"name": "fedavg"}, local=local(lr_decay=0.5))
    assert left.x[2] == near((0.7500375 + 0.2136) / 2)


def test_fedavg_cosine(run):
    """Of 2 rounds, round 1 is at eta = 0.1 (1 + cos(pi / 2)) / 2 = 0.05: as above."""
    left = run({"name": "fedavg"}, local=local(schedule="cosine"))
    assert left.x == near([1.0, 0.615, (0.7500375 + 0.2136) / 2])


@pytest.mark.parametrize(
    ("work", "x"),
    [
        # 0 does one step of one example, 1.1; 1 one of two and one of one, 0.4 -> 0.04.
        ({"epochs": 1, "batch_size": 2}, (1.1 + 0.04) / 2),
        # 1 leaves out its last example; 0 keeps its only one.
        ({"epochs": 1, "batch_size": 2, "drop_last": True}, (1.1 + 0.4) / 2),
        ({"epochs": 2, "batch_size": 2, "drop_last": True}, (1.19 + 0.04) / 2),
        # Both do three, going on through their examples: 1.271 and -0.176.
        ({"steps": 3, "batch_size": 2}, (1.271 - 0.176) / 2),
        ({"steps": 3, "batch_size": 2, "drop_last": True}, (1.271 - 0.176) / 2),
        # Neither given: one epoch.
        ({"batch_size": 2}, (1.1 + 0.04) / 2),
    ],
)
def test_fedavg_local_work(run, work, x):
    assert run({"name": "fedavg"}, local={"lr": 0.1, **work}, rounds=1).x[1] == near(x)


def test_fedavg_clip(run):
    """At most 0.5 long: 0 goes 1.05 -> 1.1 (g = -1, -0.95), 1 goes 0.95 -> 0.9 (g = 6, 5.8)."""
    assert run({"name": "fedavg"}, local=local(clip=0.5), rounds=1).x[1] == near(1.0)


def test_fedavg_local_momentum(run):
    """v <- 0.5 v + g, which is 0 again when the second round begins.

    From 1.  0: v = -1: 1.1; v = -0.5 - 0.9 = -1.4: 1.24.  1: v = 6: 0.4; v = 3 + 3.6: -0.26.
    From 0.49.  0: v = -1.51: 0.641; v = -0.755 - 1.359 = -2.114: 0.8524.
    1: v = 3.96: 0.094; v = 1.98 + 2.376 = 4.356: -0.3416.  x = (0.8524 - 0.3416) / 2.
    """
    assert run({"name": "fedavg"}, local=local(momentum=0.5)).x == near([1.0, 0.49, 0.2554])


def test_fedavg_local_momentum_nesterov(run):
    """Steps along g + 0.5 v, v the new one.

    0: v = -1, step -1.5: 1.15; g = -0.85, v = -1.35, step -1.525: 1.3025.
    1: v = 6, step 9: 0.1; g = 2.4, v = 5.4, step 5.1: -0.41.  x = (1.3025 - 0.41) / 2.
    """
    left = run({"name": "fedavg"}, local=local(momentum=0.5, nesterov=True), rounds=1)
    assert left.x[1] == near(0.44625)


def test_fedavg_local_momentum_holds_the_clipped_gradient_and_the_decay(run):
    """Gradients at most 1 long, then + 0.5 y, then the velocity, at momentum 0.5.

    0: -1 + 0.5 = -0.5: 1.05; g = -0.95, + 0.525 = -0.425, v = -0.675: 1.1175.
    1: 1 + 0.5 = 1.5: 0.85; g = 5.4 -> 1, + 0.425 = 1.425, v = 2.175: 0.6325.
    """
    sgd = local(momentum=0.5, weight_decay=0.5, clip=1.0)
    assert run({"name": "fedavg"}, local=sgd, rounds=1).x[1] == near((1.1175 + 0.6325) / 2)


def test_an_empty_round_changes_nothing_and_counts(run):
    left = run({"name": "fedavg"}, cohort=replay([0, 1], [], [0, 1]), rounds=3)
    assert left.x == near([1.0, 0.615, 0.615, 0.389775])


def test_fedprox(run):
    """mu = 0.5, not halved: d = g(y) + 0.5 (y - x).

    From 1.  0: d = -1, then -0.9 + 0.05 = -0.85: 1.1 -> 1.185.
    1: d = 6, then 3.6 - 0.3 = 3.3: 0.4 -> 0.07.  x = (1.185 + 0.07) / 2 = 0.6275.
    From 0.6275.  0: -1.3725, -1.23525 + 0.068625 = -1.166625: 0.76475 -> 0.8814125.
    1: 4.51, 2.706 - 0.2255 = 2.4805: 0.1765 -> -0.07155.  x = 0.8098625 / 2.
    """
    assert run({"name": "fedprox", "mu": 0.5}).x == near([1.0, 0.6275, 0.40493125])


def test_fedprox_local_momentum_holds_the_proximal_term(run):
    """mu = 0.5, momentum 0.5.  0: v = -1: 1.1; d = -0.9 + 0.05, v = -0.5 - 0.85: 1.235.

    1: v = 6: 0.4; d = 3.6 - 0.3 = 3.3, v = 6.3: -0.23.  x = (1.235 - 0.23) / 2.
    """
    left = run({"name": "fedprox", "mu": 0.5}, local=local(momentum=0.5), rounds=1)
    assert left.x[1] == near(0.5025)


def test_fedprox_clips_the_gradient_alone(run):
    """At most 1 long, mu = 0.5.  0: 1.1; g = -0.9, + 0.05: 1.185.

    1: 6 -> 1: 0.9; 5.6 -> 1, - 0.05 = 0.95: 0.805.  x = (1.185 + 0.805) / 2.
    """
    assert run({"name": "fedprox", "mu": 0.5}, local=local(clip=1.0), rounds=1).x[1] == near(0.995)


def test_fedprox_weight_decay(run):
    """wd = 0.5, at y.  0: -1 + 0.5: 1.05; -0.95 + 0.025 + 0.525 = -0.4: 1.09.

    1: 6.5: 0.35; 3.4 - 0.325 + 0.175 = 3.25: 0.025.  x = 1.115 / 2.
    """
    left = run({"name": "fedprox", "mu": 0.5}, local=local(weight_decay=0.5), rounds=1)
    assert left.x[1] == near(0.5575)


def test_fednova(run):
    """K = 1 and 2.  0: 1.1; 1: 0.4 -> 0.04: d = -0.1 and 0.48, tau = 1.5: 1 - 1.5 x 0.19 = 0.715.

    0: -1.285: 0.8435.  1: 4.86: 0.229; 2.916: -0.0626.  d = -0.1285 and 0.3888, mean 0.13015.
    """
    left = run({"name": "fednova"}, UNEQUAL, local=epoch())
    assert left.x == near([1.0, 0.715, 0.519775])


def test_fednova_weighs_by_examples(run):
    """p = 1/3 and 2/3: tau = 5/3, d = (-0.1 + 2 x 0.48) / 3 = 0.86 / 3."""
    left = run({"name": "fednova"}, UNEQUAL, local=epoch(), weights="examples", rounds=1)
    assert left.x[1] == near(1 - 4.3 / 9)


def test_fednova_counts_what_momentum_makes_of_the_steps(run):
    """Momentum 0.5.  0: 1.1, a = 1.  1: v = 6: 0.4; 3 + 3.6 = 6.6: -0.26, a = 1 + 1.5 = 2.5.

    d = -0.1 and 0.504, tau = 1.75: 1 - 1.75 x 0.202.
    """
    left = run({"name": "fednova"}, UNEQUAL, local=epoch(momentum=0.5), rounds=1)
    assert left.x[1] == near(0.6465)


def test_fednova_counts_what_the_proximal_term_leaves_of_the_steps(run):
    """mu = 0.5.  0: 1.1, a = 1.  1: 0.4; 3.6 - 0.3 = 3.3: 0.07, a = 1 + 0.95 = 1.95; tau = 1.5."""
    left = run({"name": "fednova", "mu": 0.5}, UNEQUAL, local=epoch(), rounds=1)
    assert left.x[1] == near(1 - 0.75 * (-0.1 + 0.93 / 1.95))


def test_fedacg(run):
    """lam = beta = 0.5.  0: 1.1; -0.9 + 0.05: 1.185.  1: 0.4; 3.6 - 0.3: 0.07.  v = D = 0.3725.

    x = 0.6275, xh = 0.6275 - 0.18625 = 0.44125.
    0: -1.55875: 0.597125; -1.402875 + 0.0779375: 0.72961875.
    1: 3.765: 0.06475; 2.259 - 0.18825: -0.142325.  D = 0.44125 - 0.293646875 = 0.147603125.
    v = 0.18625 + D; x = 0.6275 - v.
    """
    left = run({"name": "fedacg", "lam": 0.5, "beta": 0.5})
    assert left.x == near([1.0, 0.6275, 0.293646875])
    assert left.server("v") == near([0.0, 0.3725, 0.333853125])


def test_fedacg_server_lr(run):
    """It scales the step, not the momentum: 1 - 0.5 x 0.3725."""
    left = run({"name": "fedacg", "lam": 0.5, "beta": 0.5, "server_lr": 0.5}, rounds=1)
    assert left.x[1] == near(0.81375)
    assert left.server("v")[1] == near(0.3725)


def test_fedexp(run):
    """Squares 0.0361 and 0.9216, mean 0.47885; D = 0.385, its square 0.148225, eps = 0.01."""
    left = run({"name": "fedexp", "eps": 0.01}, rounds=1)
    rate = 0.47885 / 0.31645
    assert left.server("rate") == near([1.0, rate])
    assert left.x[1] == near(1 - 0.385 * rate)


def test_fedexp_never_steps_less_than_fedavg(run):
    """eps = 1: 0.47885 / 2.29645 is below 1; and so with one client, whose square is that of D."""
    left = run({"name": "fedexp", "eps": 1.0}, rounds=1)
    assert left.server("rate")[1] == 1.0
    assert left.x[1] == near(0.615)
    alone = run({"name": "fedexp", "eps": 1e-9}, cohort=replay([1]), rounds=1)
    assert alone.server("rate")[1] == 1.0
    assert alone.x[1] == near(0.04)


def test_fedexp_weighs_by_examples(run):
    """(0.0361 + 3 x 0.9216) / 4 = 0.700225; D = 0.6725, its square 0.45225625: below 1."""
    left = run({"name": "fedexp", "eps": 1e-9}, weights="examples", rounds=1)
    assert left.x[1] == near(0.3275)


def test_fedexp_evaluates_the_mean_of_the_last_two_models(tmp_path):
    ends = {}
    for average in (1, 2):
        algorithm = {"name": "fedexp", "eps": 0.05, "average": average}
        for rounds in (2, 3):
            job = tree(tmp_path, softmax_problem(), algorithm, rounds=rounds)
            ends[average, rounds] = play(tmp_path, job).x
    assert ends[2, 3].tolist() == near(((ends[1, 2] + ends[1, 3]) / 2).tolist())


def test_fedinit(run):
    """beta = 0.5.  The first round is FedAvg's, z = 1.19 and 0.04, x = 0.615.

    0 starts at 0.615 - 0.2875 = 0.3275: -1.6725: 0.49475; -1.50525: 0.645275.
    1 starts at 0.615 + 0.2875 = 0.9025: 5.61: 0.3415; 3.366: 0.0049.  x = 0.650175 / 2.
    """
    left = run({"name": "fedinit", "beta": 0.5})
    assert left.x == near([1.0, 0.615, 0.3250875])
    assert left.client("z") == near([0.645275, 0.0049])


def test_fedinit_of_a_client_that_comes_late(run):
    """Its z is the initial model.  0 alone: 1.19 = x; 1 starts at 1.19 + 0.095 = 1.285: 0.1426."""
    left = run({"name": "fedinit", "beta": 0.5}, cohort=replay([0], [1]))
    assert left.x == near([1.0, 1.19, 0.36 * 1.285 - 0.32])


def test_fedinit_counts_from_the_model_or_from_the_start(run):
    """As above: from x = 1.19, or from the start 1.285, 1.285 - 0.1426 = 1.1424 back."""
    fields = {"name": "fedinit", "beta": 0.5, "delta": "start"}
    left = run(fields, cohort=replay([0], [1]))
    assert left.x == near([1.0, 1.19, 1.19 - 1.1424])


def test_fedswa(run):
    """rho = 0.5: rates 0.1 and 0.075.  0: 1.1; 1.1 + 0.0675 = 1.1675.  1: 0.4; 0.4 - 0.27 = 0.13.

    D = 0.35125, x = 1 - 1.5 D = 0.473125.
    0: -1.526875: 0.6258125; -1.3741875: 0.7288765625.  1: 3.8925: 0.083875; 2.3355: -0.0912875.
    """
    left = run({"name": "fedswa", "rho": 0.5})
    assert left.x == near([1.0, 0.473125, 0.241629296875])


def test_fedswa_decays_at_the_same_rate(run):
    """wd = 0.5.  0: -0.5: 1.05; -0.95 + 0.525: 1.081875.  1: 6.5: 0.35; 3.4 + 0.175: 0.081875."""
    left = run({"name": "fedswa", "rho": 0.5}, local=local(weight_decay=0.5), rounds=1)
    assert left.x[1] == near(1 - 1.5 * 0.418125)
