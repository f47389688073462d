"""Runs as a DataFrame: hpcfl.read_runs."""

import sys

import pytest

import hpcfl as fl
from hpcfl.errors import JobError


def test_a_row_a_run_with_its_seed_settings_and_scores(job, tmp_path, hpcfl):
    runs = tmp_path / "runs"
    for seed in (0, 1):
        assert hpcfl("run", job, f"seed={seed}", "--out", runs / f"seed{seed}").code == 0
    found = fl.read_runs(runs)
    assert list(found["run"]) == ["seed0", "seed1"]
    assert list(found["directory"]) == [str(runs / "seed0"), str(runs / "seed1")]
    assert list(found["seed"]) == [0, 1]
    assert set(found["algorithm"]) == {"fedhbm"}
    assert found["local.lr"].nunique() == 1
    last = fl.read_log(runs / "seed1").iloc[-1]
    assert found["test_accuracy"][1] == last["test_accuracy"]
    assert (found["examples"] > 0).all()
    assert (found["local_steps"] > 0).all()
    assert (found["wall_s"] > 0).all()
    assert found["ran_on"].str.startswith("1 rank on cpu (").all()
    mean = found.groupby("algorithm")["test_accuracy"].mean()
    assert mean["fedhbm"] == pytest.approx(found["test_accuracy"].sum() / 2)


def test_without_pandas_a_line_says_what_to_do(job, tmp_path, hpcfl, monkeypatch):
    assert hpcfl("run", job, "rounds=1", "--out", tmp_path / "run").code == 0
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(JobError, match=r"read_runs: needs the package pandas.*pip install pandas"):
        fl.read_runs(tmp_path / "run")


def test_no_run(tmp_path):
    with pytest.raises(JobError, match="is empty, so this is no run"):
        fl.read_runs(tmp_path)
