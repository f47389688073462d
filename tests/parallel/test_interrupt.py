"""Ctrl-C: never a traceback; exit code 75 where a checkpoint can be resumed, else 130."""

import os
import subprocess
import sys

import pytest
import yaml

from hpcfl.runs.manifest import committed
from tests.forked import finish
from tests.long_form import long_form
from tests.parallel.background import changed, finish_mpi, write
from tests.parallel.harness import environment, find_mpirun

LOAD = "hpcfl.data.sources.digits:Digits.load"
COMMIT = "hpcfl.checkpoint.writer:PendingCheckpoint.commit"
ROUND = "hpcfl.engine.loop:run_round"
LATER = ("yaml", "hpcfl.engine.loop", "h5py")  # imported after hpcfl.cli.main

IN_MPI = """
import os, signal, time
from pathlib import Path

note = Path(os.environ["HPCFL_TEST_NOTE"])
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    while not note.exists():
        time.sleep(0.01)
    os.kill(int(note.read_text()), signal.SIGINT)
    os._exit(130)
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
init = MPI.Init_thread

def noted(level):
    note.with_suffix(".new").write_text(str(os.getpid()))
    note.with_suffix(".new").rename(note)
    return init(level)

MPI.Init_thread = noted
"""


@pytest.fixture
def job(tmp_path):
    return write(tmp_path, rounds=6, checkpoint={"every": 2})


def interrupted(at, send, *words, cwd=None):
    """``hpcfl WORDS``, which sends itself signals at a point; its exit code and standard error."""
    env = {**changed("interrupted"), "HPCFL_TEST_AT": at, "HPCFL_TEST_SEND": send}
    if ":" in at:
        done = finish(1, *words, env=env, folders=[cwd] if cwd else ())
    else:  # at an import, so in a Python that has imported nothing yet
        done = subprocess.run(
            [sys.executable, "-m", "hpcfl", *map(str, words)],
            env=environment(**env),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    "at", ["hpcfl.cli.main", "torch", *(pytest.param(m, marks=long_form) for m in LATER)]
)
def test_while_the_program_starts(job, tmp_path, at):
    run = tmp_path / "run"
    assert interrupted(at, "SIGINT", "run", job, "--out", run) == (130, [])
    assert not run.exists()


@pytest.mark.parametrize("at", [LOAD, COMMIT])
def test_before_the_first_checkpoint(job, tmp_path, at):
    run = tmp_path / "run"
    said = ["hpcfl run: interrupted"]
    assert interrupted(at, "SIGINT", "run", job, "--out", run) == (130, said)
    assert not committed(run / "checkpoints")
    assert finish(1, "run", job, "--out", run).returncode == 0  # nothing is in the way


@pytest.mark.parametrize(
    ("at", "send", "last"),
    [
        (ROUND, "SIGINT", "Stopped: stopped by SIGINT after round 1 of 6, with a checkpoint"),
        (ROUND, "SIGINT SIGINT", "hpcfl run: interrupted; the last checkpoint stands"),
        (f"{ROUND}#4", "SIGINT SIGINT SIGINT", "hpcfl run: interrupted; the last checkpoint"),
        (f"{ROUND}#4", "SIGTERM SIGINT", "hpcfl run: interrupted; the last checkpoint stands"),
        (f"{COMMIT}#2", "SIGTERM SIGINT", "hpcfl run: interrupted; the last checkpoint stands"),
    ],
)
def test_once_a_checkpoint_stands(job, tmp_path, at, send, last):
    run = tmp_path / "run"
    code, err = interrupted(at, send, "run", job, "--out", run)
    assert code == 75, err
    assert err[-1].startswith(last)
    assert len([line for line in err if "interrupted" in line or "Stopped" in line]) == 1
    assert finish(1, "resume", run).returncode == 0
    assert committed(run / "checkpoints")[-1].round == 6


@pytest.mark.parametrize("at", ["torch", LOAD])
@pytest.mark.parametrize("command", ["resume", "run"])
def test_a_resume_that_starts(job, tmp_path, at, command):
    """It has a checkpoint to go on from, before it did anything."""
    run = tmp_path / "run"
    assert finish(1, "run", job, "rounds=6", "--out", run).returncode == 0
    words = ["resume", run] if command == "resume" else ["run", job, "--out", run, "--continue"]
    code, err = interrupted(at, "SIGINT", *words)
    assert code == 75
    stands = f"hpcfl {command}: interrupted; the last checkpoint stands: resume to continue"
    assert err == ([] if at == "torch" else [stands])


@pytest.mark.parametrize(
    ("at", "send", "codes"),
    [
        # A rank ends them all; MPICH's mpirun hands on the code of its abort.
        (LOAD, "SIGINT", {130}),
        (ROUND, "SIGINT", {75}),
        (f"{ROUND}#4", "SIGINT SIGINT", {75}),
        (f"{ROUND}#4", "SIGTERM SIGINT", {75}),
    ],
)
def test_on_two_ranks(job, tmp_path, at, send, codes):
    env = {**changed("interrupted"), "HPCFL_TEST_AT": at, "HPCFL_TEST_SEND": send}
    done = finish_mpi(2, "run", job, "--out", tmp_path / "run", env=env)
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    stands = 75 in codes
    assert bool(committed(tmp_path / "run" / "checkpoints")) == stands
    if stands:
        assert finish(2, "resume", tmp_path / "run").returncode == 0


def test_while_a_rank_waits_in_mpi_for_one_that_has_ended(job, tmp_path):
    """It waits in C for ever, where no handler of Python can run."""
    (folder := tmp_path / "path").mkdir()
    (folder / "sitecustomize.py").write_text(IN_MPI)
    env = environment(HPCFL_TEST_NOTE=str(tmp_path / "note"))
    env["PYTHONPATH"] = f"{folder}{os.pathsep}{env['PYTHONPATH']}"
    command = [find_mpirun(), "-n", "2", sys.executable, "-m", "hpcfl", "run", job]
    done = subprocess.run(
        [*command, "--out", tmp_path / "run"],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ("sweep", "hpcfl.tools.sweep.run_sweep:prepare"),
        ("status", "hpcfl.tools.status:find_runs"),
        ("report", "hpcfl.tools.report.collect:collect_runs"),
        ("plan", "hpcfl.tools.plan.show:make_plan"),
        ("data prepare", "hpcfl.job.load:data_section"),
        ("report", "matplotlib.figure"),
    ],
)
def test_other_commands(job, tmp_path, command, at):
    words = {
        "sweep": ["sweep.yaml"],
        "status": ["run", "--follow"],
        "report": ["run", "--plot", "p.png"],
        "plan": [job],
        "data prepare": ["digits"],
    }[command]
    if words[0] == "run":
        assert finish(1, "run", job, "--out", tmp_path / "run").returncode == 0
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"job": str(job), "grid": {"seed": [1]}}))
    code, err = interrupted(at, "SIGINT", *command.split(), *words, cwd=tmp_path)
    assert code == 130, err
    # In the middle of an import it ends without a word.
    assert err == ([f"hpcfl {command}: interrupted"] if ":" in at else [])
