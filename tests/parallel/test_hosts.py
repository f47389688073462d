"""Two hosts with a network between them, under one mpirun; and the cable is cut."""

import json
import subprocess
import sys
import time

import pytest

from tests.forked import finish
from tests.long_form import long_form
from tests.parallel.background import PATIENCE_S, changed, rounds, write
from tests.parallel.harness import environment, find_mpirun
from tests.parallel.hosts import Hosts, gone, require
from tests.parallel.outcome import outcome

TIMEOUT_S = 8.0
# Long enough for a cable to be cut in.
LOCAL = {"epochs": 20, "batch_size": 16, "lr": 0.1}


def job(folder, **comm):
    return write(folder, comm=comm, local=LOCAL, rounds=40)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run on one host."""
    folder = tmp_path_factory.mktemp("whole")
    done = finish(1, "run", job(folder), "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return outcome(folder / "run")


@pytest.fixture
def hosts(tmp_path):
    require()
    with Hosts(tmp_path, 2) as made:
        yield made


def start(hosts, *args):
    command = [*hosts.mpirun(find_mpirun()), sys.executable, "-m", "hpcfl", *map(str, args)]
    return subprocess.Popen(
        command,
        env=environment(**changed("patient"), **hosts.env),
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_hosts_have_the_bits_of_one(whole, hosts, tmp_path):
    run = tmp_path / "run"
    process = start(hosts, "run", job(tmp_path), "--out", run)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "2 ranks on 2 hosts (" in err
    assert outcome(run) == whole
    (life,) = map(json.loads, (run / "history.jsonl").read_text().splitlines())
    assert len({seat["host"] for seat in life["map"]}) == 2
    assert [seat["local_rank"] for seat in life["map"]] == [0, 0]


@pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=long_form)])
def test_a_cut_cable_ends_the_run_with_one_line(whole, hosts, tmp_path, backend):
    run = tmp_path / "run"
    file = job(tmp_path, backend=backend, timeout_s=TIMEOUT_S)
    process = start(hosts, "run", file, "--out", run)
    deadline = time.monotonic() + PATIENCE_S
    while rounds(run) < 9:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hosts.cut(2)
    for number in (1, 2):
        gone(hosts, number, f"{sys.executable} -m hpcfl", PATIENCE_S)
    process.kill()  # MPICH's mpirun waits for what it started behind the cut
    told = [line for line in process.communicate()[1].splitlines() if "RankError" in line]
    (written,) = [path.read_text() for path in run.glob("ranks/*/report")]
    assert f"waited {TIMEOUT_S:g} s for the other ranks, in round" in written
    assert "all of them are alive and wait too: is the network between them (" in written
    assert told in (
        [],
        [written.partition("\n")[0]],
    )  # the line of the host behind the cut is not seen
    done = finish(1, "resume", run)
    assert done.returncode == 0, done.stderr
    assert outcome(run) == whole
