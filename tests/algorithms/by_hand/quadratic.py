"""Two clients and one parameter: every number in these tests was worked out on paper.

Client 0 has one example (a = 1, target 2), client 1 three equal ones (a = 2, target -1); the loss
is mean((a w - target)^2) / 2, so their gradients are g0(w) = w - 2 and g1(w) = 4 w + 2.
x starts at 1; K = 2 full-batch steps at eta = 0.1, weights uniform, unless a test says otherwise.

FedAvg's round from x, for all that begin with it: 0 arrives at 0.81 x + 0.38, 1 at 0.36 x - 0.32,
so that D = x - mean(y) = 0.415 x - 0.03.  From 1: 0 goes 1.1 -> 1.19, 1 goes 0.4 -> 0.04 and
D = 0.385; from 0.615: 0 goes 0.7535 -> 0.87815, 1 goes 0.169 -> -0.0986 and D = 0.225225.
"""

import numpy as np
import pytest

from tests.algorithms.play import Problem

TWO = Problem(
    np.array([[1.0], [2.0], [2.0], [2.0]]),
    np.array([2.0, -1.0, -1.0, -1.0]),
    np.array([0, 1, 1, 1]),
)
# A third client, which is in no cohort: |S| / N is then 2/3.
THREE = Problem(np.append(TWO.x, [[9.0]], 0), np.append(TWO.y, 9.0), np.append(TWO.client, 2))
# One example less: in an epoch of batches of one, client 0 takes one step and client 1 two.
UNEQUAL = Problem(TWO.x[:3], TWO.y[:3], TWO.client[:3])


def local(**changes):
    """The local section of a job."""
    return {"steps": 2, "batch_size": "full", "lr": 0.1, **changes}


def epoch(**changes):
    """The local section for one epoch of batches of one."""
    return {"epochs": 1, "batch_size": 1, "lr": 0.1, **changes}


def replay(*rounds):
    """The cohort section for these rounds."""
    return {"kind": "replay", "rounds": [list(members) for members in rounds]}


def near(value):
    return pytest.approx(value, rel=0, abs=1e-12)
