"""Three classes, one feature that is 1 and no bias, so that the model is its logits."""

from math import exp, log

import numpy as np
import pytest

from tests.algorithms.by_hand.quadratic import local, near
from tests.algorithms.play import Problem, tree, xs

LABEL_0 = Problem(np.ones((1, 1)), np.array([0]), np.array([0]))
TWO_OF_0 = Problem(np.ones((17, 1)), np.array([0] * 16 + [1]), np.zeros(17, dtype=int))


@pytest.fixture
def model(tmp_path):
    """The models before and after every round, from logits 0, log 2, 0."""

    def go(algorithm, problem, **changes):
        np.save(tmp_path / "start.npy", np.array([0.0, log(2), 0.0]))
        start = {"name": "linear", "bias": False, "init": str(tmp_path / "start.npy")}
        data = {**problem.write(tmp_path), "classes": 3}
        job = tree(tmp_path, problem, algorithm, model=start, rounds=1, local=local(**changes))
        return xs(tmp_path, job | {"data": data})

    return go


def test_fedntd(model):
    """beta = 2, tau = 1, two steps at 1.  Of x: p = (2/3, 1/3) over classes 1 and 2.

    At x the distillation has no gradient: softmax (1/4, 1/2, 1/4): y = (3/4, log 2 - 1/2, -1/4).
    There exp(y) = (e^(3/4), 2 e^(-1/2), e^(-1/4)), and q = (2, e^(1/4)) / (2 + e^(1/4)).
    """
    path = model({"name": "fedntd", "beta": 2.0}, LABEL_0, lr=1.0)
    y = np.array([0.75, log(2) - 0.5, -0.25])
    e = [exp(0.75), 2 * exp(-0.5), exp(-0.25)]
    q = 2 / (2 + exp(0.25))
    g = np.array([e[0] / sum(e) - 1, e[1] / sum(e), e[2] / sum(e)])
    g += 2 * np.array([0, q - 2 / 3, 2 / 3 - q])
    assert path[1] == near(y - g)


def test_fedlc(model):
    """16 examples of class 0, 1 of class 1, none of class 2, tau = 1: margins 1/2 and 1.

    One full step at 1: exp of 0 - 1/2 and of log 2 - 1; class 2 stays where it is.
    """
    path = model({"name": "fedlc"}, TWO_OF_0, lr=1.0, steps=1)
    e = exp(-0.5), 2 * exp(-1)
    g = e[0] / sum(e) - 16 / 17
    assert path[1] == near(np.array([-g, log(2) + g, 0.0]))
