"""From the settings that validation data chose to a sweep with all training data."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import hpcfl as fl
from hpcfl.tools.sweep.final_sweep import _names
from hpcfl.tools.sweep.grid import read_sweep
from tests.tools.points import run_points

SWEEP = """\
job: job.yaml
set: {{data.validation: {validation}, evaluate.every: 1{more}}}
grid:
  method:
    hbm: {{algorithm: {{name: fedhbm}}}}
    avg: {{algorithm: {{name: fedavg}}}}
  local.lr: [0.2, 0.0001]
  seed: [1, 0]
"""
TWO = """\
job: job.yaml
set: {{data.validation: {{share: 0.2}}}}
grid:
  data: {{this: {{data.path: {folder}/data.npz}}, other: {{data.path: {folder}/other.npz}}}}
  method:
    hbm: {{algorithm: {{name: fedhbm}}}}
    avg: {{algorithm: {{name: fedavg}}}}
  local.lr: [0.2, 0.0001]
"""
NAMES = [
    f"{m}-lr{rate}-seed{seed}" for m in ("hbm", "avg") for rate in (0.2, 0.0001) for seed in (1, 0)
]


@pytest.fixture
def swept(job, tmp_path, hpcfl):
    def go(validation="{share: 0.2}", more=""):
        file, root = tmp_path / "rates.yaml", tmp_path / "rates"
        file.write_text(SWEEP.format(validation=validation, more=more))
        run_points(read_sweep(file), root)
        return root

    return go


def final(root, hpcfl):
    path = root.parent / "final.yaml"
    done = hpcfl("report", root, "--chosen", "--write-sweep", path)
    assert done.code == 0, done.err
    assert done.out[-1] == f"{path}: a sweep of 4 runs, without validation data"
    return path


def best_rates(root):
    """By the names of the methods."""
    return fl.read_runs(root, chosen=True).groupby("algorithm")["local.lr"].first().to_dict()


def test_the_chosen_settings_with_all_training_data(swept, hpcfl, tmp_path):
    root = swept()
    path = final(root, hpcfl)
    points = read_sweep(path).points
    assert [point.name for point in points] == [
        "hbm-seed0", "hbm-seed1", "avg-seed0", "avg-seed1",
    ]  # fmt: skip
    best = best_rates(root)
    for point in points:
        job = point.loaded.job
        assert job.local.lr == best[f"fed{point.labels[0]}"]
        assert (job.data.validation, job.rounds, job.seed) == (None, 4, int(point.name[-1]))
    lines = path.read_text().splitlines()
    assert f"# hbm: local.lr {best['fedhbm']} (of 2 jobs)" in lines
    assert hpcfl("sweep", path, "--out", tmp_path / "out", "--dry-run").code == 0


def test_defaults_follow_from_all_clients(swept, hpcfl):
    """The participation of 2 of 4 clients, though the choice was made with 3."""
    path = final(swept("{share: 0.25, of: clients}"), hpcfl)
    point = read_sweep(path).points[0]
    assert point.loaded.job.algorithm.participation == 0.5
    assert "participation: null" in path.read_text()


def test_what_waits_for_validation_scores_is_left_out(swept, hpcfl):
    stop = ", stop: {metric: validation_loss, patience: 100}"
    path = final(swept(more=stop), hpcfl)
    assert yaml.safe_load(path.read_text())["set"] == {"data.validation": None, "stop": None}
    assert read_sweep(path).points[0].loaded.job.stop is None


def test_each_method_has_its_own_values(swept, hpcfl):
    """Both are in the grid, also that of the base job: fedavg has but another rate."""
    root = swept()
    other = 0.0001 if best_rates(root)["fedhbm"] == 0.2 else 0.2
    for run in root.glob(f"avg-lr{0.2 if other == 0.0001 else 0.0001}-*"):
        (shutil.rmtree if run.is_dir() else Path.unlink)(run)
    found = yaml.safe_load(final(root, hpcfl).read_text())["grid"]["method"]
    assert list(found["hbm"]) == list(found["avg"]) == ["algorithm", "local.lr"]
    assert found["avg"]["local.lr"] == other != found["hbm"]["local.lr"]


def test_a_report_has_the_order_of_the_sweep(swept, hpcfl):
    """The order of the grid, not of names, for a table and for Python."""
    root = swept()
    assert list(fl.read_runs(root)["run"]) == NAMES
    lines = [line.split()[1] for line in hpcfl("report", root).out if line.startswith("| ")]
    assert [name for name in lines if name in NAMES] == NAMES
    paper = [
        line.split()[1] for line in hpcfl("report", root, "--layout", "paper").out if "lr 0" in line
    ]
    assert paper == ["hbm", "hbm", "avg", "avg"]


def test_set_ups_whose_names_would_be_alike_have_points_of_their_own():
    texts = ["digits, iid, validation", "digits, iid", "mine.FedLogit"]
    assert list(_names(texts).values()) == ["digits-iid", "digits-iid-2", "mine.FedLogit"]


def test_it_needs_a_choice(job, hpcfl, refused, tmp_path):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    line = refused("report", run, "--write-sweep", tmp_path / "final.yaml")
    assert "--write-sweep: writes the chosen settings; give --chosen, too" in line


def test_a_sweep_over_data_sets_has_them_as_an_axis_again(job, arrays, tmp_path, hpcfl):
    """Files of one kind, of which neither is chosen; points are called as the sweep calls them."""
    arrays("other.npz", y=np.arange(40) // 10)
    sweep, root = tmp_path / "two.yaml", tmp_path / "two"
    sweep.write_text(TWO.format(folder=tmp_path))
    run_points(read_sweep(sweep), root)
    path = final(root, hpcfl)
    written = yaml.safe_load(path.read_text())
    assert list(written["grid"]) == ["method", "set-up", "seed"]
    points = {point.name: point.loaded.job for point in read_sweep(path).points}
    assert list(points) == [
        "hbm-this-seed0",
        "hbm-other-seed0",
        "avg-this-seed0",
        "avg-other-seed0",
    ]
    best = fl.read_runs(root, chosen=True).set_index(["algorithm", "data.path"])["local.lr"]
    assert len(best) == 4
    for name, final_job in points.items():
        file = tmp_path / ("data.npz" if "this" in name else "other.npz")
        assert Path(final_job.data.path) == file
        assert final_job.local.lr == best[f"fed{name[:3]}", str(file)]
    paper = hpcfl("report", root, "--chosen", "--layout", "paper").out
    assert paper[1].split() == ["|", "|", "this", "|", "other", "|"]
