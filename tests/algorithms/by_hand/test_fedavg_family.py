"""FedAvg and FedProx by hand: the plain mean, and local training tied to its start."""

import pytest

from tests.algorithms.by_hand.quadratic import local, near, replay


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
