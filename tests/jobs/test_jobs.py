"""Every job of the repository is a good one, and every script for Slurm parses."""

import subprocess
from pathlib import Path

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.describe import describe
from hpcfl.job import load

ROOT = Path(__file__).parents[2]
JOBS = sorted((ROOT / "jobs").rglob("*.yaml"))
SCRIPTS = sorted((ROOT / "slurm").glob("*.sh"))


def name(path):
    return str(path.relative_to(ROOT))


def test_there_are_some():
    assert JOBS
    assert SCRIPTS


@pytest.mark.parametrize("path", JOBS, ids=name)
def test_job_passes_the_check(path):
    loaded = load(path)
    said = describe(loaded, data=False)
    assert f"{loaded.job.rounds} rounds" in said


@pytest.mark.parametrize("method", ALGORITHMS)
def test_method_has_a_demo(method):
    """The job that shows it on two quadratics bears its name."""
    path = ROOT / "jobs" / "quadratics" / f"{method}.yaml"
    assert type(load(path).job.algorithm) is ALGORITHMS[method]


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_script_parses(path):
    subprocess.run(["bash", "-n", path], check=True)
