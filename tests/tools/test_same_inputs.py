"""Reports compare inputs by content: a run may find its data at another place than its like."""

import re
from pathlib import Path

import numpy as np
import pytest

import hpcfl
from hpcfl.runs.record import RunRecord
from hpcfl.tools.exports.record import export_record
from hpcfl.tools.report.collect import with_common_paths


@pytest.fixture
def run_on(tmp_path):
    """Run a small job on the arrays of ``values``, in a folder of this name."""

    def run(place, values, seed, **changes):
        data, out = tmp_path / place / "own.npz", tmp_path / f"{place}-{seed}"
        data.parent.mkdir(exist_ok=True)
        x = np.asarray(values, dtype=np.float32)[:, None]
        y = np.arange(len(x)) % 2
        np.savez(data, x=x, y=y, x_test=x, y_test=y, client=y)
        hpcfl.run(
            {
                "rounds": 1,
                "seed": seed,
                "algorithm": {"name": "fedavg"},
                "data": {"kind": "arrays", "path": str(data)},
                "model": {"name": "logistic"},
                "cohort": {"kind": "uniform", "size": 2},
                "local": {"steps": 1, "batch_size": 2, "lr": 0.1},
                **changes,
            },
            out=out,
        )
        return out

    return run


def test_seeds_with_copies_of_the_data_have_a_mean(run_on):
    runs = [run_on("a", range(8), 0), run_on("b", range(8), 1)]
    report = hpcfl.report_runs(runs, layout="seeds")
    (row,) = report.values
    assert row["seeds"] == 2


def test_so_have_their_records(run_on, tmp_path):
    runs = [run_on("a", range(8), 0), run_on("b", range(8), 1), run_on("c", range(1, 9), 2)]
    for run in runs:
        export_record(run, tmp_path / "study" / run.name)
    report = hpcfl.report_runs(tmp_path / "study", layout="seeds")
    assert [row["seeds"] for row in report.values] == [2, 1]


def test_seeds_with_other_data_are_told_apart(run_on):
    """Also where the path is the same, because the file was replaced between the runs."""
    first = run_on("a", range(8), 0)
    elsewhere = run_on("b", range(1, 9), 1)
    replaced = run_on("a", range(2, 10), 2)
    report = hpcfl.report_runs([first, elsewhere, replaced], layout="seeds")
    assert [row["seeds"] for row in report.values] == [1, 1, 1]
    settings = [row["settings"] for row in report.values]
    assert settings[0].endswith("/a/own.npz")
    assert settings[1].endswith("/b/own.npz")
    assert re.search(r"own\.npz \([0-9a-f]{8}\)$", settings[2])


def record(path, digest):
    inputs = {} if digest is None else {"data.root/train.npz": digest}
    return RunRecord(
        Path("runs"), "fedavg", 1, 0, (), {"data.root": path, "seed": 0}, inputs=inputs
    )


def test_paths_follow_the_content():
    runs = [
        record("/one", "sha256:1"),
        record("/two", "sha256:1"),
        record("/one", "sha256:2"),
        record("/three", "sha256:2"),
        record("/two", None),
    ]
    first, copy, replaced, copy_of_replaced, unknown = (
        run.settings["data.root"] for run in with_common_paths(runs)
    )
    assert first == copy == "/one"
    assert replaced == copy_of_replaced != "/one"
    assert replaced.startswith("/one (")
    assert unknown == "/two"


def test_seeds_from_other_initial_weights_are_told_apart(run_on, tmp_path):
    """Also where the file was replaced between the runs; copies of one file are the same."""
    runs = []
    for seed, (place, value) in enumerate([("a", 0.5), ("b", 0.5), ("a", 0.25)]):
        init = tmp_path / place / "init.npy"
        init.parent.mkdir(exist_ok=True)
        np.save(init, np.full(4, value))
        runs.append(run_on("data", range(8), seed, model={"name": "logistic", "init": str(init)}))
    report = hpcfl.report_runs(runs, layout="seeds")
    assert sorted(row["seeds"] for row in report.values) == [1, 2]
