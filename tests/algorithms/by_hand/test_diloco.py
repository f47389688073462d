"""DiLoCo, SlowMo and Streaming DiLoCo by hand: D = 0.415 x - 0.03 where all begin with x."""

import numpy as np

from tests.algorithms.by_hand.quadratic import local, near


def test_diloco(run):
    """v = 0.385, the step 0.385 + 0.9 x 0.385 = 0.7315, x = 1 - 0.7 x 0.7315 = 0.48795.

    D = 0.17249925, v = 0.3465 + D = 0.51899925, the step D + 0.467099325 = 0.639598575,
    x = 0.48795 - 0.4477190025.
    """
    left = run({"name": "diloco"})
    assert left.server("v") == near([0.0, 0.385, 0.51899925])
    assert left.x == near([1.0, 0.48795, 0.0402309975])


def test_slowmo(run):
    """u = 0.385 / 0.1 = 3.85, x = 1 - 0.1 u = 0.615.

    At eta = 0.05, 0 goes 0.68425 -> 0.7500375, 1 goes 0.392 -> 0.2136: D = 0.13318125.
    u = 0.7 x 3.85 + D / 0.05 = 2.695 + 2.663625, x = 0.615 - 0.05 u = 0.615 - 0.26793125.
    """
    left = run({"name": "slowmo"}, local=local(lr_decay=0.5))
    assert left.server("u") == near([0.0, 3.85, 5.358625])
    assert left.x == near([1.0, 0.615, 0.34706875])


def test_slowmo_has_the_rate_of_the_last_local_step(run):
    """Of a warm-up of two steps, 0.05 and 0.1: 0 goes 1.05 -> 1.145, 1 goes 0.7 -> 0.22.

    D = 1 - 0.6825 = 0.3175, u = 3.175; beta = 0.5, eta_g = 2: x = 1 - 2 x 0.1 u = 0.365.
    """
    schedule = {"kind": "constant", "warmup": 2}
    keys = {"name": "slowmo", "beta": 0.5, "server_lr": 2.0}
    left = run(keys, local=local(step_schedule=schedule), rounds=1)
    assert left.server("u") == near([0.0, 3.175])
    assert left.x == near([1.0, 0.365])


def test_streaming_diloco(run):
    """One fragment, which comes after the first of two steps; beta = eta_g = 0.5.

    Round 0 is FedAvg's: y = 1.19 and 0.04, v = 0.385, x = 1 - 0.5 (0.385 + 0.1925) = 0.71125.
    Round 1: 0 goes 1.19 -> 1.271, has (1.271 + 0.71125) / 2 = 0.991125 and goes to 1.0920125;
    1 goes 0.04 -> -0.176, has (-0.176 + 0.71125) / 2 = 0.267625 and goes to -0.039425.
    D = 0.71125 - 0.52629375 = 0.18495625, v = 0.1925 + D = 0.37745625,
    x = 0.71125 - 0.5 (D + 0.188728125) = 0.71125 - 0.1868421875.
    """
    keys = {"name": "streaming_diloco", "fragments": 1, "beta": 0.5, "server_lr": 0.5}
    left = run(keys)
    assert left.server("v") == near([0.0, 0.385, 0.37745625])
    assert left.x == near([1.0, 0.71125, 0.5244078125])
    assert left.client("y") == near([1.0920125, -0.039425])


def test_streaming_diloco_of_two_fragments(run, tmp_path):
    """A weight w = 1 and a bias b = 0 by turns, each received in the next round before its step.

    beta = alpha = 0, eta_g = 1; with r = a w + b - target a step is w - 0.1 a r, b - 0.1 r.
    Round 0: r = -1 and 3, so y = (1.1, 0.1) and (0.4, -0.3): w = 0.75.
    Round 1 from (0.75, 0.1) and (0.75, -0.3): r = -1.15 and 2.2, so y = (0.865, 0.215) and
    (0.31, -0.52): b = -0.1525.
    Round 2 from (0.865, -0.1525) and (0.31, -0.1525): r = -1.2875 and 1.4675, so
    y = (0.99375, -0.02375) and (0.0165, -0.29925): w = 0.505125.
    """
    np.save(tmp_path / "start.npy", np.array([1.0, 0.0]))
    keys = {"name": "streaming_diloco", "fragments": 2, "delay": 0}
    keys |= {"alpha": 0.0, "beta": 0.0, "server_lr": 1.0}
    model = {"name": "linear", "init": str(tmp_path / "start.npy")}
    left = run(keys, model=model, local=local(steps=1), rounds=3)
    xs = [[1.0, 0.0], [0.75, 0.0], [0.75, -0.1525], [0.505125, -0.1525]]
    assert [server["x"].tolist() for server in left.servers] == [near(x) for x in xs]
    ys = [[0.99375, -0.02375], [0.0165, -0.29925]]
    assert [state.y.tolist() for state in left.clients] == [near(y) for y in ys]
