"""Every job of the repository is a good one, and every script for Slurm parses."""

import subprocess
from pathlib import Path

import pytest

from hpcfl.describe import describe
from hpcfl.job import load
from hpcfl.sweep.grid import read_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "jobs/sweeps").glob("*.yaml"))
JOBS = sorted({*(ROOT / "jobs").rglob("*.yaml")} - {*SWEEPS})
SCRIPTS = sorted((ROOT / "slurm").glob("*.sh"))


def name(path):
    return str(path.relative_to(ROOT))


def test_there_are_some():
    assert JOBS
    assert SWEEPS
    assert SCRIPTS


@pytest.mark.parametrize("path", JOBS, ids=name)
def test_job_passes_the_check(path):
    loaded = load(path)
    said = describe(loaded, data=False)
    assert f"{loaded.job.rounds} rounds" in said


@pytest.mark.parametrize("path", SWEEPS, ids=name)
def test_every_run_of_a_sweep_passes_the_check(path):
    sweep = read_sweep(path)
    assert len(sweep.points) > 1
    for point in sweep.points:
        assert describe(point.loaded, data=False)


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_script_parses(path):
    subprocess.run(["bash", "-n", path], check=True)
