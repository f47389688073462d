"""hpcfl.run and hpcfl.resume as often as one likes in one process, on several ranks too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import finish, free_ports
from tests.long_form import long_form
from tests.parallel.background import write
from tests.parallel.harness import environment, mpirun
from tests.parallel.outcome import outcome

SCRIPT = Path(__file__).with_name("several.py")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The two runs, each in a process of its own."""
    root = tmp_path_factory.mktemp("alone")
    job = write(root, rounds=4)
    for name, seed in (("a", 2), ("b", 5)):
        done = finish(1, "run", job, f"seed={seed}", "--out", root / name)
        assert done.returncode == 0, done.stderr
    return results(root)


def results(root):
    """Models and states; a run that ended and went on has evaluated one round more."""
    return [outcome(root / name)._replace(log=[]) for name in "ab"]


@pytest.mark.parametrize(
    ("ranks", "backend"), [(1, "mpi"), pytest.param(2, "mpi", marks=long_form), (2, "gloo")]
)
def test_two_runs_and_a_resume(alone, tmp_path, ranks, backend):
    job = write(tmp_path, rounds=4, comm={"backend": backend, "timeout_s": 60.0})
    done = mpirun(ranks, SCRIPT, tmp_path, job)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("done-*"))) == ranks
    assert results(tmp_path) == alone


def test_under_torchrun(alone, tmp_path):
    """Its own store outlives the runs, and no rank may find what an earlier run left there."""
    job = write(tmp_path, rounds=4, comm={"backend": "gloo", "timeout_s": 60.0})
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    done = subprocess.run(
        [sys.executable, *launcher, str(free_ports(1)), SCRIPT, tmp_path, job],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("done-*"))) == 2
    assert results(tmp_path) == alone


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
@pytest.mark.parametrize("fault", [pytest.param("raise", marks=long_form), "exit"])
def test_a_rank_that_ends_between_two_runs_ends_all(tmp_path, fault, backend):
    job = write(tmp_path, rounds=4, comm={"backend": backend, "timeout_s": 60.0})
    done = mpirun(2, SCRIPT, tmp_path, job, fault)
    assert done.returncode not in (0, 75), done.stderr
    assert not list(tmp_path.glob("done-*"))
    assert not (tmp_path / "b").exists()
    if fault == "raise":
        assert "RuntimeError: the flux capacitor is empty" in done.stderr
    else:
        assert "rank 1 of 2 has ended instead of starting the run that rank 0 sta" in done.stderr
