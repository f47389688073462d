"""Runs that diverged to finite numbers are told, and healthy ones are not."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hpcfl
from hpcfl.runs.divergence import find_divergence
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report import as_papers, by_run, by_seed, plain, to_csv

TEN = math.log(10)  # the loss of guessing among ten classes


def log(losses, *, initial=None, accuracy=None):
    """A log with these training losses, the initial model's test loss and the last accuracy."""
    lines = [] if initial is None else [{"round": 0, "test_loss": initial}]
    lines += [{"round": t, "train_loss": loss} for t, loss in enumerate(losses, 1)]
    if accuracy is not None:
        lines[-1]["test_accuracy"] = accuracy
    return lines


DIVERGED = {
    "at once, beyond all reason": (log([8e9, 5e9, 6e9], accuracy=0.6), TEN),
    "in one round": (log([6e9]), TEN),
    "slowly": (log([2.3] * 5 + [50.0 * t for t in range(10)], initial=2.3), TEN),
    "a network whose units are dead": (log([1.2, 14, 34, 1.2, 12, 11, 9], accuracy=0.1), TEN),
    "at last": (log([2.3, 2.2, 2.7, 2.5, 2.0, 3.0, 2.6, 140, 75, 332], accuracy=0.1), TEN),
    "targets, growing": (log([700 * 1.5**t for t in range(30)], initial=750), 750.0),
    "not finite, as null": (log([2.0, None, None]), TEN),
    "a function of its parameters alone": (log([1.0, 50.0, 2500.0, 1e6, 1e8], initial=0.5), None),
    "an earlier version's, no guess known": (log([2.0, 3e5, 3e5]), None),
}
HEALTHY = {
    "no round yet": ([], TEN),
    "only the initial model": (log([], initial=2.3), TEN),
    "a small rate": (log([2.31, 2.29, 2.3, 2.32], initial=2.3, accuracy=0.09), TEN),
    "one-class clients, learnt at once": (log([0.05, 2.1, 3.9, 2.2, 4.1], accuracy=0.12), TEN),
    "one bad round among the last": (log([1.0] * 19 + [1e6]), TEN),
    "clients learnt, x of theirs not": (
        [
            *log([2.3, 10.0, 9.0, 11.0], initial=2.3, accuracy=0.1)[:-1],
            {"round": 4, "train_loss": 9.5, "test_accuracy": 0.1, "personal_accuracy": 0.97},
        ],
        TEN,
    ),
    "a bad beginning": (log([1.4, 77, 8.4, *[2.2] * 9], initial=3.7, accuracy=0.1), TEN),
    "raw features, a rate as small as they need": (
        log([9e5 * 0.99**t for t in range(20)], initial=1e6),
        0.5,
    ),
    "a large rate of a linear model that tells the classes": (
        log([125, 874, *[40.0] * 20], initial=2.6, accuracy=0.95),
        TEN,
    ),
    "targets far from zero": (log([44_000.0] * 10, initial=45_000), 45_000.0),
    "a loss that begins at 0": (log([0.0, 1e-3, 1e-3], initial=0.0), None),
    "a loss below 0": (log([-40.0, -41.0, -50.0], initial=0.0), None),
    "a loss that grows by as much as clients differ": (log([0.4, 1.2, 5.0]), None),
}


@pytest.mark.parametrize("name", DIVERGED)
def test_what_diverged(name):
    assert find_divergence(*DIVERGED[name]) is not None


@pytest.mark.parametrize("name", HEALTHY)
def test_what_did_not(name):
    assert find_divergence(*HEALTHY[name]) is None


QUICK = {
    "task": "digits",
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.0}, "clients": 10},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedavg"},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
    "rounds": 6,
}


@pytest.mark.parametrize("lr", [1.0e-6, 0.1, 10.0])
@pytest.mark.parametrize("name", ["fedavg", "fedhbm", "fedcm", "scaffold"])
def test_real_runs_are_healthy(tmp_path, capsys, own_process, name, lr):
    """One-class clients, a fifth of them a round, from far too small a rate to a large one."""
    hpcfl.run(QUICK, [f"local.lr={lr:f}", f"algorithm={{name: {name}}}"], out=tmp_path / "run")
    assert "warning" not in capsys.readouterr().err


@pytest.fixture
def diverged(job, arrays, tmp_path, hpcfl):
    """Features that nobody scaled, and a rate of 1000: finite, and exit code 0."""
    random = np.random.default_rng(0)
    arrays(x=1e3 * random.standard_normal((40, 3)), x_test=None, y_test=None)
    run = tmp_path / "runs" / "run"
    done = hpcfl("run", job, "algorithm={name: fedavg}", "local.lr=1000", "--out", run)
    assert done.code == 0
    return run, done


def test_the_end_of_the_run_says_it(diverged):
    run, done = diverged
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = [line["train_loss"] for line in lines if line["round"]]
    assert all(1e5 < loss < math.inf for loss in losses)
    (told,) = [line for line in done.err if line.startswith("warning: ")]
    loss = f"train loss {np.median(losses):.3g} (median of the last 4 rounds)"
    cure = "Lower local.lr or algorithm.server_lr, or set local.clip"
    assert told == f"warning: {run}: diverged: {loss}, guessing has 1.39. {cure}"


def test_a_healthy_run_says_nothing(job, tmp_path, hpcfl):
    done = hpcfl("run", job, "--out", tmp_path / "run")
    assert not [line for line in done.err if "warning" in line]
    assert "diverged" not in hpcfl("status", tmp_path / "run").text


def test_status_says_it(diverged, hpcfl):
    run, _ = diverged
    said = hpcfl("status", run).out
    assert said[0].endswith("fedavg, finished")
    assert said[1].startswith("diverged    train loss ")
    assert hpcfl("status", run.parent).out == [
        "finished          4 of 4  run  (diverged)",
        "1 run: 1 finished; 1 of them diverged, with finite numbers",
    ]


def test_reports_mark_it(diverged, hpcfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, _ = diverged
    said = hpcfl("report", run).out
    assert any("| 4/4 diverged |" in line for line in said)
    assert any(line.startswith("diverged: a number was not finite, or ") for line in said)
    (row,) = csv.DictReader(hpcfl("report", run, "--format", "csv").out)
    assert (row["state"], row["diverged"]) == ("finished", "1")


def test_the_means_over_seeds_count_those_that_diverged():
    settings = {"algorithm.name": "fedavg", "data.kind": "digits", "cohort.kind": "uniform"}
    runs = [
        RunRecord(
            Path(f"r{seed}"), "fedavg", 3, 0, tuple(log([loss] * 3, accuracy=accuracy)),
            {**settings, "seed": seed}, guess_loss=TEN,
        )
        for seed, loss, accuracy in ((0, 0.5, 0.8), (1, 6e9, 0.1))
    ]  # fmt: skip
    assert "| 2 (1 diverged) |" in plain(by_seed(runs))
    assert "45.00 +- 49.50 (n=2) (1 diverged)" in plain(as_papers(runs))
    for made in (by_seed(runs), as_papers(runs)):
        assert "\ndiverged: a number" in plain(made)
        (row,) = csv.DictReader(io.StringIO(to_csv(made)))
        assert row["seeds_diverged"] == "1"
    assert "diverged" not in plain(by_run([replace(runs[0])]))
