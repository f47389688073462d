"""The sweeps of all methods on CIFAR-10 have every method; the page has what their runs gave."""

import csv
import re
from pathlib import Path
from statistics import mean, stdev

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.tools.sweep.grid import read_sweep
from tests.project.pages import section

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/all_methods"
SWEEPS = ["sweep.yaml", "sweep_adaptive.yaml", "sweep_personal.yaml", "chosen.yaml"]
# One client has all data; workers that train a language model are few, and all take part.
OTHERS = {"centralized", "diloco", "slowmo", "streaming_diloco"}


@pytest.fixture
def points(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return {name: read_sweep(FOLDER / name).points for name in SWEEPS}


def test_every_method_is_compared(points):
    found = {point.loaded.names["algorithm"] for of_sweep in points.values() for point in of_sweep}
    assert found == set(ALGORITHMS) - OTHERS


def recorded(name):
    """The rows of a table of docs/records."""
    with (ROOT / f"docs/records/all-methods/{name}.csv").open() as file:
        return [*csv.DictReader(file)]


def shown(title):
    """The rows of the page's table with this title in its first column, by the first cells."""
    page = section((ROOT / "docs/results.md").read_text(), "CIFAR-10: all methods")
    table = re.search(rf"^\| {title} \|.*\n\|[-:|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {name.strip("`"): cells for name, *cells in rows}


def spread(values):
    return f"{mean(values):.1f} +- {stdev(values):.1f}"


def accuracies(runs):
    return [float(row["accuracy"]) for row in runs]


def test_every_rate_was_run(points):
    """The chosen one is the best on the validation data of those that did not diverge."""
    swept = {
        (point.labels[0], point.loaded.job.local.lr)
        for name in SWEEPS[:2]
        for point in points[name]
    }
    rows = recorded("rates")
    assert {(row["method"], float(row["lr"])) for row in rows} == swept
    assert len(rows) == len(swept)
    best = {}
    for row in rows:
        if row["validation"]:
            best.setdefault(row["method"], []).append((float(row["validation"]), float(row["lr"])))
    chosen = {point.labels[0]: point.loaded.job.local.lr for point in points["chosen.yaml"]}
    assert chosen == {method: max(found)[1] for method, found in best.items()}


def test_the_scores_of_the_page(points):
    scores = {}
    for row in recorded("scores"):
        scores.setdefault(row["method"], {})[int(row["seed"])] = row
    assert {tuple(point.labels) for point in points["chosen.yaml"]} == {
        (method, f"seed{seed}") for method, runs in scores.items() for seed in runs
    }
    table = shown("method")
    assert {*table} == {*scores}
    for method, (rate, accuracy, down, up) in table.items():
        runs = [*scores[method].values()]
        assert {float(row["lr"]) for row in runs} == {float(rate)}
        assert accuracy == spread(accuracies(runs)), method
        assert (down, up) == tuple(f"{float(runs[0][key]):.2f}" for key in ("down", "up")), method
    assert [*table] == sorted(table, key=lambda method: -mean(accuracies(scores[method].values())))


def test_the_personal_scores_of_the_page(points):
    scores = {}
    for row in recorded("personal"):
        scores.setdefault(row.pop("method"), {})[int(row.pop("seed"))] = row
    assert {tuple(point.labels) for point in points["sweep_personal.yaml"]} == {
        (method, f"seed{seed}") for method, runs in scores.items() for seed in runs
    }
    table = shown("personal")
    assert {*table} == {*scores}
    for method, cells in table.items():
        runs = [*scores[method].values()]
        assert cells == [spread([float(row[key]) for row in runs]) for key in runs[0]], method
