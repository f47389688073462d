"""The two baselines against torch's own optimisers, which are written by others."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.algorithms.play import ROUNDS, Problem, softmax_problem, tree
from tests.algorithms.reference import Setting
from tests.algorithms.trace import trace

PROBLEM = softmax_problem()
POOLED = Problem(PROBLEM.x, PROBLEM.y, np.zeros_like(PROBLEM.client))
COHORTS = [[1, 4], [0, 1, 2, 3, 4, 5], [5], [2, 4], [0, 1], [1, 3, 4]]


def follow(optimizer, gradients, rates, x0):
    """[steps + 1, P]: what a torch optimiser does with each gradient in turn, at its rate."""
    x = torch.nn.Parameter(torch.from_numpy(x0.copy()))
    made, path = optimizer([x], lr=1.0), [x0]
    for gradient, rate in zip(gradients, rates, strict=True):
        x.grad = torch.from_numpy(gradient(path[-1]))
        made.param_groups[0]["lr"] = rate
        made.step()
        path.append(x.detach().numpy().copy())
    return np.stack(path)


@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_centralized_is_torch_s_sgd(tmp_path, beta, wd):
    """Batch for batch, the momentum going on from epoch to epoch."""
    local = {"epochs": 1, "batch_size": 8, "lr": 0.2, "lr_decay": 0.8, "weight_decay": wd}
    job = tree(tmp_path, PROBLEM, {"name": "centralized", "beta": beta}, local=local)
    found = trace(job).xs
    words = {"lr": 0.2, "lr_decay": 0.8, "epochs": 1, "batch": 8}
    s = Setting(problem=POOLED, x0=found[0], cohorts=[], participation=1.0, **words)
    gradients = [g for t in range(ROUNDS) for g in s.batches(0, t)]
    rates = [s.eta(t) for t in range(ROUNDS) for _ in range(s.K(0))]
    sgd = partial(torch.optim.SGD, momentum=beta, weight_decay=wd)
    expected = follow(sgd, gradients, rates, found[0])[:: s.K(0)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize(
    ("fields", "optimizer"),
    [
        ({"optimizer": "sgd"}, torch.optim.SGD),
        ({"optimizer": "momentum", "beta": 0.8}, partial(torch.optim.SGD, momentum=0.8)),
        (
            {"optimizer": "adam", "b1": 0.8, "b2": 0.9, "tau": 1e-6},
            partial(torch.optim.Adam, betas=(0.8, 0.9), eps=1e-6),
        ),
    ],
    ids=str,
)
def test_server_only_is_torch_s_optimizer_on_the_mean_gradient(
    tmp_path, fields, optimizer, weights, wd
):
    """Every local step's gradient is taken at x."""
    local = {"epochs": 2, "batch_size": 4, "lr": 0.2, "lr_decay": 0.8, "weight_decay": wd}
    algorithm = {"name": "server_only", "server_lr": 0.7, **fields}
    cohort = {"kind": "replay", "rounds": COHORTS}
    job = tree(tmp_path, PROBLEM, algorithm, local=local, cohort=cohort, weights=weights)
    found = trace(job).xs
    words = {"lr": 0.2, "lr_decay": 0.8, "uniform": weights == "uniform"}
    s = Setting(problem=PROBLEM, x0=found[0], cohorts=COHORTS, participation=1.0, **words)

    def mean_gradient(t, x):
        return s.mean({i: np.mean([g(x) for g in s.batches(i, t)], axis=0) for i in COHORTS[t]})

    gradients = [partial(mean_gradient, t) for t in range(ROUNDS)]
    rates = [0.7 * s.eta(t) for t in range(ROUNDS)]
    expected = follow(partial(optimizer, weight_decay=wd), gradients, rates, found[0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
