"""Every algorithm against plain numpy, over several rounds of softmax regression."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.algorithms import reference
from tests.algorithms.play import ROUNDS, parts, softmax_problem, tree, xs
from tests.algorithms.zoo import ALL

PROBLEM = softmax_problem()
CLIENTS = PROBLEM.population

PARTIAL = [[1, 4], [0, 1, 2, 3, 4, 5], [5], [2, 4], [0, 1], [1, 3, 4]]

# Keys of a job, and the same in the reference's words.
SETTINGS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full participation": ({}, {}),
    "full batches, uniform": (
        {"local": {"epochs": 3, "batch_size": "full", "lr": 0.3}, "weights": "uniform"},
        {"epochs": 3, "batch": None, "uniform": True},
    ),
    "weight decay, uniform": (
        {
            "local": {"epochs": 2, "batch_size": 4, "lr": 0.3, "weight_decay": 0.25},
            "weights": "uniform",
        },
        {"wd": 0.25, "uniform": True},
    ),
    "lr decay, weight decay": (
        {"local": {"epochs": 1, "batch_size": 3, "lr": 0.5, "lr_decay": 0.7, "weight_decay": 0.1}},
        {"epochs": 1, "batch": 3, "lr": 0.5, "lr_decay": 0.7, "wd": 0.1},
    ),
    "cyclic": (
        {"cohort": {"kind": "cyclic", "size": 2}},
        {
            "cohorts": [[2 * t % 6, (2 * t + 1) % 6] for t in range(ROUNDS)],
            "participation": 2 / 6,
        },
    ),
    "partial, weight decay": (
        {
            "cohort": {"kind": "replay", "rounds": PARTIAL},
            "local": {"epochs": 2, "batch_size": 4, "lr": 0.3, "weight_decay": 0.25},
        },
        {"cohorts": PARTIAL, "participation": sum(map(len, PARTIAL)) / ROUNDS / 6, "wd": 0.25},
    ),
}


def expected(algorithm: Mapping[str, Any], setting: reference.Setting, drawn: Any) -> Any:
    """What the papers' definitions give."""
    match algorithm["name"]:
        case "fedavg":
            return reference.fedavg(setting)
        case "scaffold":
            return reference.scaffold(setting, algorithm.get("option", 2))
        case "fedhbm":
            return reference.fedhbm(
                setting,
                algorithm.get("beta", 1.0),
                algorithm["first"],
                algorithm.get("nesterov", False),
                drawn,
            )
        case "localghb":
            return reference.localghb(
                setting, algorithm.get("beta", 0.9), algorithm.get("nesterov", False)
            )
        case name:
            raise KeyError(name)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ALL)
def test_equals_plain_numpy(tmp_path, name, setting):
    algorithm, (changes, words) = ALL[name], SETTINGS[setting]
    job = tree(tmp_path, PROBLEM, algorithm, **changes)
    whole = {"cohorts": [list(range(CLIENTS))] * ROUNDS, "participation": 1.0}
    found = xs(tmp_path, job)
    drawn = {}
    if algorithm.get("first") == "random":
        described = parts(tmp_path, job)
        drawn = {i: described.fresh(i)().numpy() for i in range(CLIENTS)}
    numbers = whole | words | {"server_lr": algorithm.get("server_lr", 1.0)}
    truth = expected(algorithm, reference.Setting(PROBLEM, found[0], **numbers), drawn)
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-12)
    assert np.abs(truth[-1] - truth[0]).max() > 0.1


def test_random_first_anchors_are_the_client_s_own(tmp_path):
    """Drawn as the model is, different for every client and from the model, always the same."""
    described = parts(tmp_path, tree(tmp_path, PROBLEM, ALL["fedhbm-random"]))
    drawn = [described.fresh(i)().numpy() for i in (*range(CLIENTS), 0)]
    assert (drawn[0] == drawn[-1]).all()
    vectors = np.stack([described.x0.numpy(), *drawn[:-1]])
    assert len(np.unique(vectors, axis=0)) == CLIENTS + 1
    assert np.abs(vectors).max() <= 0.5  # nn.Linear of 4 inputs: U(-1/2, 1/2)


def test_the_reference_s_gradient_is_the_slope_of_its_loss():
    """So that an error in it cannot hide behind one in torch."""
    setting = reference.Setting(PROBLEM, np.zeros(15), [], 1.0)
    rows = PROBLEM.rows(3)
    draw = np.random.default_rng(1)
    y, along = draw.normal(size=15), draw.normal(size=15)

    def loss(y):
        logits = PROBLEM.x[rows] @ y[:12].reshape(3, 4).T + y[12:]
        return np.mean(
            np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(rows)), PROBLEM.y[rows]]
        )

    slope = (loss(y + 1e-6 * along) - loss(y - 1e-6 * along)) / 2e-6
    assert slope == pytest.approx(setting.gradient(rows, y) @ along, rel=1e-8)
