"""One weight and one bias, so that one of them can be a client's own.

Client 0 has the example (1, 3), client 1 (2, -1); the loss is r^2 / 2 with r = w a + b - target,
so that the gradient is (a r, r).  Both start at 1; eta = 0.1, weights uniform.
"""

import numpy as np
import pytest

from tests.algorithms.by_hand.quadratic import local, near
from tests.algorithms.play import Problem, model_for, parts, play, servers, states, tree

LINES = Problem(np.array([[1.0], [2.0]]), np.array([3.0, -1.0]), np.array([0, 1]))


@pytest.fixture
def lines(tmp_path):
    """The server's parameters before and after each of two rounds; the clients' biases."""

    def go(algorithm, steps):
        np.save(tmp_path / "ones.npy", np.ones(2))
        start = {**model_for(algorithm), "init": str(tmp_path / "ones.npy")}
        job = tree(tmp_path, LINES, algorithm, model=start, weights="uniform", rounds=2)
        job |= {"local": local(steps=steps), "checkpoint": {"every": 1, "keep": 9}}
        path = play(tmp_path, job).directory
        own = [float(state.own) for state in states(path, parts(tmp_path, job))]
        return [server["x"].tolist() for server in servers(path)], own

    return go


def test_fedper(lines):
    """r: -1 and 4; w goes to 1.1 and 0.2, b to 1.1 and 0.6.  Then r: -1.25 and 2.9."""
    x, own = lines({"name": "fedper", "personal": ["1.bias"]}, steps=1)
    assert x == [near([1, 1]), near([0.65, 1]), near([0.65 - (-0.125 + 0.58) / 2, 1])]
    assert own == near([1.225, 0.31])


def test_fedrep(lines):
    """One step of b, then one of w.  r of client 0: -1, -0.9 | -1.215, -1.0935;
    of client 1: 4, 3.6 | 2.97, 2.673."""
    x, own = lines({"name": "fedrep", "personal": ["1.bias"], "body": 0.5}, steps=2)
    assert x == [near([1, 1]), near([0.685, 1]), near([0.472375, 1])]
    assert own == near([1.2215, 0.303])


def test_fedbn(lines):
    """As FedPer's: b is the bias of a normalisation layer."""
    assert lines({"name": "fedbn"}, steps=1) == lines(
        {"name": "fedper", "personal": ["1.bias"]}, steps=1
    )


def test_ditto(run):
    """lam = 1.  v_0: 1 -> 1.1 -> 1.18 | 1.2055 -> 1.2259; v_1: 0.4 -> 0.1 | -0.0885 -> -0.18275.

    x is FedAvg's: 1, 0.615, 0.389775.
    """
    left = run({"name": "ditto"})
    assert left.x == near([1, 0.615, 0.389775])
    assert left.client("v") == near([1.2259, -0.18275])
