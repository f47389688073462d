"""Every score is the same number on any number of ranks, and so is the best model."""

import csv
import math

import numpy as np
import pytest

from hpcfl.runs.manifest import committed
from tests.long_form import long_form
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

JOB = {
    "task": "digits",
    "data": {"partition": {"kind": "dirichlet", "alpha": 10.0}, "clients": 23},
    "cohort": {"kind": "bernoulli", "p": 0.2},
    "algorithm": {"name": "fedhbm"},
    "local": {"steps": 3, "batch_size": 16, "lr": 0.3, "schedule": "cosine"},
    "rounds": 8,
    "checkpoint": {"every": 3},
    "evaluate": {
        "every": 1, "batch_size": 16, "train": True, "clients": "table", "best": True,
        "local_models": True,
    },
    "seed": 5,
    "device": "cpu",
}  # fmt: skip
JOBS = {
    "held": {**JOB, "data": {**JOB["data"], "holdout": 0.3, "validation": {"share": 0.2}}},
    "clients": {**JOB, "data": {**JOB["data"], "validation": {"share": 0.1, "of": "clients"}}},
    "uniform": {**JOB, "weights": "uniform"},
}
PLAYED = {
    **JOBS,
    "personal": {
        **JOBS["held"],
        "algorithm": {"name": "ditto"},
        "evaluate": {"every": 1, "batch_size": 16, "personal": True},
    },
    "tuned": {
        **JOBS["held"],
        "evaluate": {
            "every": 4,
            "batch_size": 16,
            "personal": {"steps": 2},
            "clients": "table",
        },
    },
}
OWN = {
    **{key: value for key, value in JOB.items() if key != "task"},
    "model": {"name": "linear"},
    "algorithm": {"name": "ditto"},
    "evaluate": {"every": 2, "clients": "table", "personal": True},
}
"""Clients with test examples of their own."""
PARTS = ("mean", "std", "worst_decile", "best_decile")
SCORES = {
    "test_loss", "test_accuracy", "test_top5_accuracy", "train_objective", "local_model_clients",
    *(
        f"{whose}_accuracy_{part}"
        for whose in ("client", "local_model")
        for part in PARTS
    ),
}  # fmt: skip
VALIDATION = {"validation_loss", "validation_accuracy", "validation_top5_accuracy"}


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Plays all jobs on so many ranks, or resumes those in ``folder``; returns the folder."""

    owned = owned_data(tmp_path_factory.mktemp("owned") / "owned.csv")
    jobs = {**PLAYED, "own": {**OWN, "data": owned}}

    def go(ranks, stop=0, folder=None):
        root = folder or tmp_path_factory.mktemp(f"on{ranks}")
        play_all(root, jobs, ranks, stop=stop, mpi=False)
        return root

    return go


def owned_data(path):
    """A table of 23 clients, of whom all but two have test examples; the section of it."""
    draw = np.random.default_rng(0)
    lines = ["a,b,label,who,part"]
    for client in range(23):
        for row in range(6 + client):
            label, part = row % 3, "test" if client % 11 and row > 4 else "train"
            a, b = draw.normal(label, 1 + client / 10, size=2)
            lines.append(f"{a:.3f},{b:.3f},{label},{client},{part}")
    path.write_text("\n".join([*lines, ""]))
    return {"kind": "table", "path": str(path), "label": "label", "client": "who", "split": "part"}


def left(run):
    """What a run left, its best model and the scores of its clients."""
    best = committed(run / "checkpoints")[-1].folder / "best.safetensors"
    more = [path.read_bytes() for path in (best, run / "clients.csv") if path.exists()]
    return outcome(run), *more


def table(run):
    return list(csv.DictReader((run / "clients.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def alone(play):
    return play(1)


def test_the_jobs_have_every_score(alone):
    for name in JOBS:
        log = outcome(alone / name).log
        scores = SCORES if name == "uniform" else SCORES | VALIDATION
        assert {key for key in log[-1] if key in SCORES | VALIDATION} == scores
        for score in scores - {"local_model_clients"}:
            assert len({record[score] for record in log if score in record}) > 1, score
        assert log[0]["local_model_clients"] < log[-1]["local_model_clients"] < 23


def test_the_clients_own_models_have_theirs(alone):
    log = outcome(alone / "personal").log
    for score in ("loss", "accuracy", *(f"accuracy_{part}" for part in PARTS)):
        assert len({record[f"personal_{score}"] for record in log}) > 1, score
    for score in ("loss", "accuracy"):
        assert len({record[f"personal_validation_{score}"] for record in log}) > 1, score


def test_the_table_has_every_client_of_every_evaluation(alone):
    rounds, clients = range(9), range(23)
    rows = table(alone / "held")
    assert [(r["round"], r["model"], r["client"]) for r in rows if r["model"] == "global"] == [
        (str(round), "global", str(client)) for round in rounds for client in clients
    ]
    last = [row for row in rows if row["round"] == "8"]
    accuracies = [float(row["accuracy"]) for row in last if row["model"] == "global"]
    log = outcome(alone / "held").log[-1]
    assert math.fsum(accuracies) / 23 == pytest.approx(log["client_accuracy_mean"], abs=1e-15)
    local = [row for row in last if row["model"] == "local"]
    assert len(local) == log["local_model_clients"]
    assert {row["data"] for row in rows} == {"holdout"}
    tuned = [row for row in table(alone / "tuned") if row["model"] == "personal"]
    assert len(tuned) == 3 * 23
    assert {row["data"] for row in table(alone / "uniform")} == {"train"}
    own = [row for row in table(alone / "own") if row["round"] == "8"]
    assert {row["data"] for row in own} == {"test"}
    clients = [str(client) for client in range(23) if client % 11]
    assert [row["client"] for row in own if row["model"] == "personal"] == clients


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=long_form), 3])
def test_on_any_number_of_ranks(alone, play, ranks):
    many = play(ranks)
    for name in (*PLAYED, "own"):
        assert left(many / name) == left(alone / name), name


def test_stopped_and_resumed_on_another_number_of_ranks(alone, play):
    folder = play(3, stop=4)
    play(2, folder=folder)
    for name in (*PLAYED, "own"):
        assert left(folder / name) == left(alone / name), name
