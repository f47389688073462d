"""A rank that is stopped or slow: the run ends, and one line says which."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hpcfl.io.heartbeat import read_report
from tests.forked import finish, free_ports
from tests.long_form import long_form
from tests.parallel.background import PATIENCE_S, Going, changed, finish_mpi, held, rounds, write
from tests.parallel.harness import environment
from tests.parallel.outcome import outcome
from tests.parallel.test_comm import torchrun_style

TIMEOUT_S = 8.0


def job(folder, backend="auto", timeout_s=TIMEOUT_S, **changes):
    return write(folder, comm={"backend": backend, "timeout_s": timeout_s}, **changes)


def said(stderr):
    """The one line that tells why the run ended."""
    (line,) = [line for line in stderr.splitlines() if "RankError" in line]
    assert "Traceback" not in stderr
    return line


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    done = finish(1, "run", job(folder), "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    assert list((folder / "run/ranks").iterdir()) == []
    return outcome(folder / "run")


def test_a_stopped_rank_ends_the_run_and_is_named(whole, tmp_path):
    size, victim = 3, 0
    run = tmp_path / "run"
    with Going(size, "run", job(tmp_path), "--out", run, env=held(40)) as going:
        going.wait_until(lambda: rounds(run) >= 9)
        pids = going.ranks()
        os.kill(pids[victim], signal.SIGSTOP)
        code, _, err = going.end()
        # The ranks' own is 1; MPICH's mpirun may tell that of the stopped one, which it killed: 9.
        assert code not in (0, 2, 3, 75), err
    line = said(err)
    assert line.startswith("RankError: [rank ")
    assert f"of {size}] waited {TIMEOUT_S:g} s for the other ranks, in round " in line
    assert f": rank {victim} (host " in line
    assert f", pid {pids[victim]}) was last heard of " in line
    assert line.endswith("; resume from the last checkpoint")
    assert read_report(run / "ranks") == line
    done = finish(1, "resume", run)
    assert done.returncode == 0, done.stderr
    assert outcome(run) == whole
    assert list((run / "ranks").iterdir()) == []


@pytest.mark.usefixtures("forked_python")
def test_a_rank_that_fails_alone_ends_those_that_do_not_notice(tmp_path):
    """Without a launcher: both end with the disk's exit code, and one says why."""
    run, port = tmp_path / "run", str(free_ports(1))
    file = job(tmp_path, "gloo", timeout_s=600.0)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "hpcfl", "run", file, "--out", run],
            env=environment(**changed("deaf"), **torchrun_style(rank, 2, port)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [74, 74], errors
    line = "[rank 1 of 2] DiskError: own-0001.h5: the disk is full"
    assert errors[1].splitlines() == [line]
    assert "Error" not in errors[0]
    assert read_report(run / "ranks") == line


@long_form
def test_without_a_launcher_every_rank_ends_by_itself(tmp_path):
    """Three processes that nobody looks after; the stopped one ends when it goes on."""
    run, port = tmp_path / "run", str(free_ports(1))
    file = job(tmp_path, "gloo", rounds=10_000)
    command = [sys.executable, "-m", "hpcfl", "run", file, "--out", run]
    ranks = [
        subprocess.Popen(
            command,
            env=environment(**changed("patient"), **torchrun_style(rank, 3, port)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        deadline = time.monotonic() + PATIENCE_S
        while rounds(run) < 9:
            assert [rank.communicate() for rank in ranks if rank.poll() is not None] == []
            assert time.monotonic() < deadline
            time.sleep(0.002)
        ranks[1].send_signal(signal.SIGSTOP)
        ends = [ranks[rank].communicate(timeout=PATIENCE_S)[1] for rank in (0, 2)]
        assert ranks[1].poll() is None
        ranks[1].send_signal(signal.SIGCONT)
        ends.append(ranks[1].communicate(timeout=PATIENCE_S)[1])
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [1, 1, 1]
    assert f"rank 1 (host {os.uname().nodename}, pid {ranks[1].pid}) was" in said("".join(ends))


def test_a_round_that_takes_longer_than_the_timeout(tmp_path):
    """The rank that does not come is alive: the line says what to raise."""
    file = job(tmp_path, timeout_s=20.0)  # a twelfth, and the slow one is heard of in time
    done = finish_mpi(2, "run", file, "--out", tmp_path / "run", env=held(5))
    assert done.returncode not in (0, 2, 3, 75), done.stderr
    line = said(done.stderr)
    assert line.startswith("RankError: [rank 0 of 2] waited 20 s for the other ranks")
    assert ") is alive, in round 6, training, but did not come; " in line
    assert "raise comm.timeout_s; resume from the last checkpoint" in line
