"""Every algorithm against plain numpy, over several rounds of softmax regression."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from hpcfl.algorithms import ALGORITHMS
from tests.algorithms.methods import ALL, ALLOW_MOMENTUM, ALLOW_NESTEROV, ENTRIES, SAMPLE, WHOLE
from tests.algorithms.play import ROUNDS, Problem, parts, softmax_problem, tree, xs
from tests.algorithms.reference import METHODS, Setting
from tests.algorithms.settings import LR, Method
from tests.algorithms.trace import trace
from tests.long_form import long_form

PROBLEM = softmax_problem()
CLIENTS = PROBLEM.population
POOLED = Problem(PROBLEM.x, PROBLEM.y, np.zeros_like(PROBLEM.client))

PARTIAL = [[1, 4], [0, 1, 2, 3, 4, 5], [], [2, 4], [5], [1, 3, 4]]
PARTIAL_JOB = {"cohort": {"kind": "replay", "rounds": PARTIAL}}
PARTIAL_WORDS = {"cohorts": PARTIAL, "participation": sum(map(len, PARTIAL)) / ROUNDS / CLIENTS}

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
    "partial with an empty round, weight decay": (
        PARTIAL_JOB | {"local": {"epochs": 2, "batch_size": 4, "lr": 0.3, "weight_decay": 0.25}},
        PARTIAL_WORDS | {"wd": 0.25},
    ),
    "partial, clipped, steps": (
        PARTIAL_JOB
        | {
            "local": {"steps": 3, "batch_size": 2, "lr": 0.6, "lr_decay": 0.9, "clip": 0.5},
            "weights": "uniform",
        },
        PARTIAL_WORDS
        | {"epochs": None, "steps": 3, "batch": 2, "lr": 0.6, "lr_decay": 0.9}
        | {"clip": 0.5, "uniform": True},
    ),
}
# Local momentum, for the methods that allow it.
MOMENTUM_SETTINGS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "momentum, partial, clipped, steps": (
        PARTIAL_JOB
        | {
            "local": {"steps": 3, "batch_size": 2, "lr": 0.3, "clip": 0.5, "momentum": 0.7},
            "weights": "uniform",
        },
        PARTIAL_WORDS
        | {"epochs": None, "steps": 3, "batch": 2, "clip": 0.5, "uniform": True}
        | {"momentum": 0.7},
    ),
    "nesterov, lr decay, weight decay": (
        {
            "local": {"epochs": 2, "batch_size": 3, "lr": 0.2, "lr_decay": 0.7}
            | {"weight_decay": 0.1, "momentum": 0.6, "nesterov": True}
        },
        {"batch": 3, "lr": 0.2, "lr_decay": 0.7, "wd": 0.1, "momentum": 0.6, "nesterov": True},
    ),
}


def options(name: str, **choices: list[Any]) -> list[dict[str, Any]]:
    """Every combination of the choices of a method's fields."""
    return [
        {"name": name, **dict(zip(choices, chosen, strict=True))}
        for chosen in product(*choices.values())
    ]


BOTH = [False, True]
RATES = [1.0, 0.7]
# A linear model is its last dense layer: with fedper's default it is personal as a whole.
WITHOUT_DEFAULTS = {"centralized", "dpfedavg", "fedper", "fedrep", "streaming_diloco"}
DEFAULTS = [{"name": name} for name in METHODS if name not in WITHOUT_DEFAULTS]
OPTIONS = [
    *options("fedavgm", beta=[0.0, 0.6], nesterov=BOTH, server_lr=[0.4]),
    *options("diloco", beta=[0.0, 0.6], server_lr=[0.4]),
    *options("slowmo", beta=[0.0, 0.6], server_lr=[0.4]),
    *options("fedadam", b1=[0.5], b2=[0.8], tau=[0.01], v0=[0.0, 0.02], bias_correction=BOTH),
    *options("fedyogi", b1=[0.5], b2=[0.8], tau=[0.01], v0=[0.0, 0.02], bias_correction=BOTH),
    *options("fedadagrad", b1=[0.0, 0.5], tau=[0.01], v0=[0.0, 0.02], server_lr=[0.2]),
    *options("scaffold", option=[1, 2], first=["zero", "gradient"], server_lr=RATES),
    *options("feddyn", alpha=[0.05, 1.0], server_lr=RATES),
    *options("adabest", mu=[0.3], beta=[0.0, 0.7], server_lr=RATES),
    *options("mime", beta=[0.6], form=["heavy", "ema"], server_lr=[0.7]),
    *options("mimemom", form=["heavy", "ema"], server_lr=[0.1]),
    *options("mimelite", beta=[0.6], form=["heavy", "ema"], server_lr=[0.7]),
    *options("mimelitemom", form=["heavy", "ema"], server_lr=[0.1]),
    *options("mimeadam", b1=[0.5], b2=[0.8], eps=[0.5], v0=[0.0, 0.02], server_lr=[0.7]),
    *options("mimeadam", form=["optimizer"], bias_correction=BOTH, eps=[0.01]),
    *options("mimeliteadam", b1=[0.5], b2=[0.8], eps=[0.5], v0=[0.0, 0.02]),
    *options("mimeliteadam", form=["optimizer"], bias_correction=BOTH, server_lr=[0.7]),
    *options("mimemvr", beta=[0.0, 0.6], server_lr=RATES),
    *options("fedcm", alpha=[0.4, 1.0], norm=["server", "client"], server_lr=RATES),
    *options("mofedsam", alpha=[0.4], rho=[0.3], norm=["server", "client"], server_lr=[0.7]),
    *options("fedadc", beta=[0.6], beta_local=[0.6, 0.3], nesterov=BOTH, server_lr=[0.7]),
    *options("fedadamw", v=["mean", "full"], running=BOTH, alpha=[0.0, 0.7], server_lr=[0.7]),
    *options("fedntd", beta=[0.0, 2.0], tau=[0.5]),
    *options("fedlc", tau=[0.0, 2.0]),
    *options("fedlada", alpha=[0.0, 0.5], b1=[0.5], b2=[0.9], eps=[0.1]),
    *options("fedmuon", alpha=[0.0, 0.7], nesterov=BOTH, beta=[0.5], matrix_lr=[0.4]),
    *options("fedmim", alpha=[[0.5], [0.0]], beta=[[0.3], [0.0]]),
    *options("fedmim", alpha=[[0.3, 0.2, 0.1]], beta=[[0.1, 0.0, 0.4]], server_lr=RATES),
    *options("ghb", tau=[1, 2, 4], nesterov=BOTH, server_lr=[0.7]),
    *options("ghb", participation=[0.5], nesterov=BOTH),
    *options("localghb", nesterov=BOTH, participation=[None, 0.5], server_lr=[0.7]),
    *options("fedhbm", nesterov=BOTH, beta=[0.7], participation=[0.5]),
    *options("fednova", mu=[0.0, 0.5], server_lr=RATES),
    *options("fedacg", lam=[0.6], beta=[0.0, 0.5], server_lr=RATES),
    *options("fedvarp", server_lr=[0.7]),
    *options("fedexp", eps=[0.05, 0.2], average=[1, 2]),
    *options("fedinit", beta=[0.4], delta=["model", "start"], server_lr=RATES),
    *options("fedswa", rho=[0.0, 0.4, 1.0], server_lr=[0.7]),
    *options("fedmoswa", rho=[0.0, 0.4], gamma=[0.4, 1.0], server_lr=[0.7]),
    *options("fedper", personal=[["1.bias"], ["1.weight"]], server_lr=RATES),
    *options("fedrep", personal=[["1.bias"]], body=[0.3, 0.7], server_lr=[0.7]),
    *options("fedbn", server_lr=RATES),
    *options("ditto", lam=[0.0, 0.5], server_lr=[0.7]),
    *options("fedspeed", mu=[0.4], alpha=[0.6], normalised=BOTH, server=["all", "cohort"]),
    *options("fedspeed", rho=[0.3], server=["all", "cohort"], server_lr=[0.7]),
    *options("fedgamma", rho=[0.3], option=[1, 2], first=["zero", "gradient"], server_lr=[0.7]),
    *options("fedsmoo", alpha=[0.4], rho=[0.3], simplified=BOTH, server_lr=RATES),
    *options("fedlesam", rho=[0.3], source=["own", "previous"], server_lr=RATES),
    *options("fedlesam_s", rho=[0.3], option=[1, 2], first=["zero", "gradient"], server_lr=[0.7]),
    *options("fedlesam_d", rho=[0.3], alpha=[0.4], server_lr=RATES),
    *options("topk", ratio=[0.2, 0.07], server_lr=RATES),
    *options("ef21", ratio=[0.2, 0.07], server_lr=RATES),
    *options("randk", ratio=[0.2, 0.9], server_lr=RATES),
    *options("qsgd", levels=[1, 3, 100], server_lr=RATES),
    *options("dpfedavg", clip=[0.2, 10.0], noise=[0.0, 1.0], server_lr=RATES),
    *options("server_only", optimizer=["momentum", "adam", "mvr"], server_lr=[0.7]),
]


def told(given: Mapping[str, Any] | str) -> str:
    """For a test's id: an algorithm, or the name of a setting."""
    return given if isinstance(given, str) else str(Method(given, LR))


def check(folder, algorithm, setting):
    """Play, and compare with the reference: every round's model."""
    changes, words = {**SETTINGS, **MOMENTUM_SETTINGS}[setting]
    fields = {key: value for key, value in algorithm.items() if key != "name"}
    whole = {"cohorts": [list(range(CLIENTS))] * ROUNDS, "participation": 1.0}
    job = tree(folder, PROBLEM, algorithm, **changes)
    if algorithm.get("first") == "random":
        described = parts(folder, job)
        fields["drawn"] = {i: described.random_init(i)().numpy() for i in range(CLIENTS)}
    found = trace(job).xs
    numbers = whole | words | {"problem": PROBLEM, "x0": found[0]}
    expected = METHODS[algorithm["name"]](Setting(**numbers), **fields)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert np.abs(expected[-1] - expected[0]).max() > 0.05


# In every setting; the others have another problem, or other cohorts: see below.
REFERENCED = METHODS.keys() - WHOLE


def compared():
    """Every entry in every setting; in CI only the first of each method in those of all clients."""
    for name, keys in ALL.items():
        for setting, (changes, _) in SETTINGS.items() if keys["name"] in REFERENCED else ():
            always = name in SAMPLE or changes.items() >= PARTIAL_JOB.items()
            yield pytest.param(name, setting, marks=() if always else long_form)


@pytest.mark.parametrize(("name", "setting"), list(compared()))
def test_equals_plain_numpy(tmp_path, name, setting):
    check(tmp_path, ALL[name], setting)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for names, setting in zip((ALLOW_MOMENTUM, ALLOW_NESTEROV), MOMENTUM_SETTINGS, strict=True)
        for name in names
        if ALL[name]["name"] in REFERENCED
    ],
)
def test_local_momentum_equals_plain_numpy(tmp_path, name, setting):
    check(tmp_path, ALL[name], setting)


def options_compared():
    """Every default and option in two settings; in CI in one of them in turn."""
    settings = "lr decay, weight decay", "partial with an empty round, weight decay"
    for number, algorithm in enumerate([*DEFAULTS, *OPTIONS]):
        for k, setting in enumerate(settings):
            yield pytest.param(algorithm, setting, marks=() if k == number % 2 else long_form)


@pytest.mark.parametrize(("algorithm", "setting"), list(options_compared()), ids=told)
def test_every_default_and_option_equals_plain_numpy(tmp_path, algorithm, setting):
    check(tmp_path, algorithm, setting)


@pytest.mark.parametrize("wd", [0.0, 0.25])
@pytest.mark.parametrize("fields", [{}, {"beta": 0.0}, {"beta": 0.5, "server_lr": 0.7}], ids=str)
def test_centralized_equals_plain_numpy(tmp_path, fields, wd):
    local = {"epochs": 1, "batch_size": 8, "lr": 0.3, "lr_decay": 0.7, "weight_decay": wd}
    job = tree(tmp_path, PROBLEM, {"name": "centralized", **fields}, local=local)
    found = trace(job).xs
    words = {"problem": POOLED, "x0": found[0], "cohorts": [[0]] * ROUNDS, "participation": 1.0}
    setting = Setting(**words, epochs=1, batch=8, lr_decay=0.7, wd=wd)
    expected = METHODS["centralized"](setting, **fields)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert np.abs(expected[-1] - expected[0]).max() > 0.1


SAME_STEPS = {"lr": 0.3, "lr_decay": 0.8, "weight_decay": 0.1, "batch_size": 4, "steps": 3}


@pytest.mark.parametrize(
    "fields",
    [
        *options("streaming_diloco", fragments=[1, 2], delay=[0, 1, 2], alpha=[0.0, 0.5, 1.0]),
        *options(
            "streaming_diloco",
            fragments=[[["1.bias"], ["1.weight"]], [["1.bias", "1.weight"]]],
            beta=[0.0, 0.6],
            server_lr=[0.4],
        ),
    ],
    ids=told,
)
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_streaming_diloco_equals_plain_numpy(tmp_path, fields, momentum):
    local = SAME_STEPS | {"momentum": momentum}
    job = tree(tmp_path, PROBLEM, fields, local=local)
    found = trace(job)
    whole = {"cohorts": [list(range(CLIENTS))] * ROUNDS, "participation": 1.0}
    words = {"lr_decay": 0.8, "wd": 0.1, "epochs": None, "steps": 3, "momentum": momentum}
    setting = Setting(problem=PROBLEM, x0=found.xs[0], **whole, **words)
    keys = {key: value for key, value in fields.items() if key != "name"}
    expected = METHODS["streaming_diloco"](setting, **keys)
    np.testing.assert_allclose(found.xs, expected, rtol=1e-12, atol=1e-12)
    assert np.abs(expected[-1] - expected[0]).max() > 0.05


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_is_compared_with_something_else(name):
    """With plain numpy, with another method by the identity of an entry, or with plain torch."""
    identities = [entry.identity for entry in ENTRIES.values() if entry.keys["name"] == name]
    assert name in {*METHODS, "moon"} or any(identities)  # moon: test_features.py


def test_every_reference_is_of_a_method():
    assert set(METHODS) <= set(ALGORITHMS)


@pytest.mark.parametrize("name", ["fedavg", "fedhbm-random", "centralized"])
def test_a_trace_is_a_run(tmp_path, name):
    """Bit for bit what a run leaves on disk."""
    job = tree(tmp_path, PROBLEM, ALL[name])
    assert (trace(job).xs == xs(tmp_path, job)).all()


def test_random_first_anchors_are_the_client_s_own(tmp_path):
    """Drawn as the model is, different for every client and from the model, always the same."""
    described = parts(tmp_path, tree(tmp_path, PROBLEM, ALL["fedhbm-random"]))
    drawn = [described.random_init(i)().numpy() for i in (*range(CLIENTS), 0)]
    assert (drawn[0] == drawn[-1]).all()
    vectors = np.stack([described.model.x0.numpy(), *drawn[:-1]])
    assert len(np.unique(vectors, axis=0)) == CLIENTS + 1
    assert np.abs(vectors).max() <= 0.5  # nn.Linear of 4 inputs: U(-1/2, 1/2)


def test_the_reference_s_gradient_is_the_slope_of_its_loss():
    """So that an error in it cannot hide behind one in torch."""
    setting = Setting(problem=PROBLEM, x0=np.zeros(15), cohorts=[], participation=1.0)
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
