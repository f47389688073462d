"""Every job of the repository is a good one, and every script for Slurm parses."""

import subprocess

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.job.load import load
from hpcfl.tools.check import check_job
from tests.jobs.every import JOBS, ROOT, SWEEPS, name, sweep
from tests.long_form import LONG

SCRIPTS = sorted((ROOT / "slurm").glob("*.sh"))
KIND = ("data", "model", "cohort", "algorithm")


def test_there_are_some():
    assert JOBS
    assert SWEEPS
    assert SCRIPTS


@pytest.mark.parametrize("path", JOBS, ids=name)
def test_job_passes_the_check(path):
    loaded = load(path)
    said = str(check_job(loaded, data=False))
    assert f"{loaded.job.rounds} rounds" in said


def test_a_demo_on_quadratics_is_of_the_method_of_its_name():
    points = sweep(ROOT / "jobs/quadratics/methods.yaml").points
    assert len(points) > 20
    for point in points:
        (label,) = point.labels
        method = "fedavg" if label == "sgd" else label  # of one step
        assert type(point.loaded.job.algorithm) is ALGORITHMS[method]


@pytest.mark.slow
@pytest.mark.parametrize("path", SWEEPS, ids=name)
def test_every_run_of_a_sweep_passes_the_check(path):
    """Each is checked as it is read; a summary is made of each kind, whatever rates and seeds.

    CI makes that of the first kind and of the last one.
    """
    points = sweep(path).points
    assert len(points) > 1
    kinds = {repr([point.loaded.tree[key] for key in KIND]): point for point in points}
    described = list(kinds.values())
    for point in described[:: 1 if LONG else max(1, len(described) - 1)]:
        assert str(check_job(point.loaded, data=False))


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_script_parses(path):
    subprocess.run(["bash", "-n", path], check=True)
