"""Signals: stop with a checkpoint and exit code 75, or checkpoint and go on.

SIGTERM and SIGUSR1 go to mpirun, which hands them on; SIGUSR2 goes to one rank, because MPICH's
mpirun dies of it.
"""

import json
import os
import re
import signal

import pytest

from tests.forked import finish
from tests.long_form import long_form
from tests.parallel.background import Going, changed, finish_mpi, held, rounds, write
from tests.parallel.outcome import outcome

NEVER = {"every": 100_000}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    done = finish(1, "run", write(folder, checkpoint=NEVER), "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return outcome(folder / "run")


@pytest.mark.parametrize(
    ("number", "ranks", "then"),
    [(signal.SIGTERM, 2, 3), pytest.param(signal.SIGUSR1, 3, 1, marks=long_form)],
)
def test_stops_with_a_checkpoint(whole, tmp_path, number, ranks, then):
    run = tmp_path / "run"
    job = write(tmp_path, checkpoint=NEVER)
    with Going(ranks, "run", job, "--out", run, env=held(40)) as going:
        going.wait_until(lambda: rounds(run) >= 10)
        going.signal(number)
        going.signal(number)  # Slurm may send it twice
        code, _, err = going.end()
    assert code == 75, err
    (line,) = [line for line in err.splitlines() if line.startswith("Stopped: ")]
    assert "Traceback" not in err
    told = re.search(rf"stopped by {number.name} after round (\d+) of 60", line)
    assert told, line
    stopped = outcome(run)
    assert stopped.round == int(told[1]) >= 10
    assert rounds(run) == stopped.round
    done = finish(then, "resume", run)
    assert done.returncode == 0, done.stderr
    assert outcome(run) == whole


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=long_form), signal.SIGUSR1])
def test_stops_before_the_first_round(whole, tmp_path, number):
    """As soon as the directory is the run's, a signal leaves something to resume."""
    run = tmp_path / "run"
    job = write(tmp_path, checkpoint=NEVER)
    with Going(2, "run", job, "--out", run, env=held(40)) as going:
        going.wait_until((run / "job.yaml").exists)
        going.signal(number)
        code, _, err = going.end()
    assert code == 75, err
    assert (run / "checkpoints").is_dir()
    done = finish(2, "resume", run)
    assert done.returncode == 0, done.stderr
    assert outcome(run) == whole


def test_saves_and_goes_on(whole, tmp_path):
    run, go = tmp_path / "run", tmp_path / "go"
    job = write(tmp_path, checkpoint=NEVER)
    with Going(2, "run", job, "--out", run, env=held(40, go)) as going:
        going.wait_until(lambda: rounds(run) >= 10)
        os.kill(going.ranks()[-1], signal.SIGUSR2)
        going.wait_until(lambda: len(list(run.glob("checkpoints/*/manifest.json"))) == 2)
        go.touch()
        code, _, err = going.end()
    assert code == 0, err
    saved = sorted(int(path.parent.name) for path in run.glob("checkpoints/*/manifest.json"))
    assert len(saved) == 2  # keep: 2
    assert 10 <= saved[0] < saved[1] == 60
    assert outcome(run) == whole
    manifest = run / "checkpoints" / f"{saved[0]:08d}" / "manifest.json"
    assert json.loads(manifest.read_text())["ranks"] == 2


@pytest.mark.parametrize(
    ("number", "ranks", "module"),
    [
        pytest.param(signal.SIGUSR1, 1, "hpcfl.cli.main", marks=long_form),
        pytest.param(signal.SIGUSR1, 2, "torch", marks=long_form),
        pytest.param(signal.SIGTERM, 2, "hpcfl.start.start", marks=long_form),
        (signal.SIGUSR1, 2, "mpi4py.MPI"),
    ],
)
def test_a_signal_during_the_start_up_is_latched(whole, tmp_path, number, ranks, module):
    """It would kill the process: the ranks' exit code would be 138, and nothing be left."""
    run = tmp_path / "run"
    env = {**changed("early"), "HPCFL_TEST_SIGNAL": number.name, "HPCFL_TEST_MODULE": module}
    job = write(tmp_path, checkpoint=NEVER)
    done = finish_mpi(ranks, "run", job, "--out", run, env=env, anew=True)
    assert done.returncode == 75, done.stderr
    told = f"Stopped: stopped by {number.name} after round 0 of 60, with a checkpoint"
    assert told in done.stderr
    assert outcome(run).round == 0
    again = finish_mpi(ranks, "resume", run, env=env, anew=True)  # in a start that goes on, too
    assert (again.returncode, told in again.stderr) == (75, True), again.stderr
    done = finish(2, "resume", run)
    assert done.returncode == 0, done.stderr
    assert outcome(run) == whole


def test_a_signal_during_the_start_up_of_a_broken_job(tmp_path):
    """The run cannot come to a checkpoint: the exit code says why, not that there is one."""
    env = {**changed("early"), "HPCFL_TEST_SIGNAL": "SIGUSR1", "HPCFL_TEST_MODULE": "torch"}
    job = write(tmp_path, rounds=-1)
    done = finish_mpi(2, "run", job, "--out", tmp_path / "run", env=env, anew=True)
    assert done.returncode == 2, done.stderr
    assert "JobError" in done.stderr
