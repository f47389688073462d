"""A run as a process of its own: what it says, how it is stopped."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hpcfl.io import regular
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader
from hpcfl.tools.sweep import process as spawn


def test_open_mpi_binds_no_run_to_the_first_core(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    found = spawn.environment(2, ["1", "3"])
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["PRTE_MCA_hwloc_default_binding_policy"] == "none"
    assert found["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert "CUDA_VISIBLE_DEVICES" not in spawn.environment(2, []).keys() - os.environ.keys()


@pytest.fixture
def starting(tmp_path, monkeypatch):
    """A run of two ranks, of which one is there, its processes, and how often it was told to stop.

    MPICH's mpirun loses a signal that comes before it has started them all.
    """
    (tmp_path / "mpirun").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setattr(spawn, "mpirun", lambda: str(tmp_path / "mpirun"))
    folder = RunDir(tmp_path / "run")
    folder.root.mkdir()
    run = spawn.RunProcess(["resume"], folder, ranks=2, threads=1, gpus=[])
    alive, told = [["mpirun"], RANK], []
    monkeypatch.setattr(spawn, "command_lines", lambda process: alive)
    monkeypatch.setattr(run._process, "terminate", lambda: told.append("stop"))
    yield run, folder, alive, told
    run.kill()


RANK = [sys.executable, "-m", "hpcfl", "resume"]


def test_a_run_is_told_to_stop_once_its_ranks_are_there(starting):
    run, _, alive, told = starting
    run.stop()
    assert (run.poll(), told) == (None, [])
    alive.append(RANK)
    assert [run.poll(), run.poll(), told] == [None, None, ["stop"]]


def test_ranks_that_write_are_there(starting):
    """Whatever a script of the user's has made of their command line."""
    run, folder, _, told = starting
    run.stop()
    folder.history.write_text("{}\n")
    assert [run.poll(), run.poll(), told] == [None, None, ["stop"]]


def test_ranks_that_cannot_be_seen_are_told_again(starting, monkeypatch):
    run, _, _, told = starting
    clock = iter([0.0, *(float(t) for t in (9, 11, 11, 20, 22, 22, 30))])
    monkeypatch.setattr(spawn.time, "monotonic", lambda: next(clock))
    run.stop()
    assert [len(told) for _ in range(5) if run.poll() is None] == [0, 1, 1, 2, 2]


def test_the_processes_that_one_started():
    command = ["sh", "-c", "sleep 1000 & echo; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as shell:
        shell.stdout.readline()  # the other has been started
        try:
            while (found := spawn.command_lines(shell.pid))[-1][:1] != ["sleep"]:
                time.sleep(0.01)
            assert found == [command, ["sleep", "1000"]]
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert spawn.command_lines(shell.pid) == []


KILLED = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed\nPlease see the FAQ page\n"


@pytest.fixture
def sleeper(tmp_path, monkeypatch):
    """A process in the place of a run that is resumed."""
    (tmp_path / "program").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setattr(spawn.sys, "executable", str(tmp_path / "program"))
    folder = RunDir(tmp_path / "run")
    folder.root.mkdir()
    run = spawn.RunProcess(["resume"], folder, ranks=1, threads=1, gpus=[])
    yield folder, run
    run.kill()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("warning\nJobError: no\n  EXIT CODE: 2\n", "JobError: no"),
        ("warning\n" + KILLED, "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed"),
        ("RankError: rank 1 is gone\n" + KILLED, "RankError: rank 1 is gone"),
        ("one\ntwo\n\n", "two"),
        ("", ""),
    ],
)
def test_the_line_that_says_best_why(sleeper, said, words):
    _, run = sleeper
    with run.log.open("a") as log:
        log.write(said)
    assert run.last_message() == words


def test_a_finished_run_with_a_damaged_log_is_told(sleeper, job, hpcfl):
    folder, run = sleeper
    assert hpcfl("run", job, "--out", folder.root).code == 0
    assert run.result().startswith("4 rounds, accuracy ")
    folder.log.write_text("{broken\n")
    assert run.result().startswith(f"but {folder.log}:1: ")


def test_a_finished_run_on_a_disk_that_fails_is_told(sleeper, job, hpcfl, monkeypatch):
    """The other runs of the sweep go on."""
    folder, run = sleeper
    assert hpcfl("run", job, "--out", folder.root).code == 0
    whole = regular.open_fd

    def fail(path, *arguments, **options):
        if path == folder.log:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return whole(path, *arguments, **options)

    monkeypatch.setattr(regular, "open_fd", fail)
    assert run.result().startswith(f"but {folder.log}: cannot be read: Input/output error")


def test_a_run_that_diverged_to_finite_numbers_is_told(sleeper, job, arrays, hpcfl):
    folder, run = sleeper
    arrays(x=1e5 * np.random.default_rng(0).standard_normal((40, 3)), x_test=None, y_test=None)
    assert hpcfl("run", job, "local.lr=1000", "--out", folder.root).code == 0
    assert run.result().startswith("4 rounds, diverged, ")


def test_a_finished_run_is_told_with_the_score_that_it_counts_by(sleeper, job, hpcfl):
    folder, run = sleeper
    words = ("algorithm={name: fedper, personal: all}", "data.holdout=0.25")
    assert hpcfl("run", job, *words, "--out", folder.root).code == 0
    line = run.result()
    last = LogReader(folder.log).read()[-1]
    assert last["personal_accuracy"] != last["test_accuracy"]
    assert f"accuracy {100 * last['personal_accuracy']:.2f} % (personal, holdout)" in line
