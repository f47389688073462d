"""One client, one rank or one file fails: every rank ends, one of them says why."""

import os
import sys

import numpy as np
import pytest

from hpcfl.io.heartbeat import read_report
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import committed
from tests.forked import finish
from tests.long_form import long_form
from tests.parallel.background import Going, changed, finish_mpi, held, rounds, write
from tests.parallel.harness import ROOT, mpirun
from tests.parallel.outcome import outcome

MODULE = '''
"""FedHBM, until client 7 comes in round 3 (the log's 4)."""

from dataclasses import dataclass

import torch

from hpcfl.algorithms.fedhbm import FedHBM


@dataclass(frozen=True, kw_only=True)
class Mine(FedHBM):
    """An algorithm of the user's own."""

    def finish(self, y, local, message, state, client):
        upload, after = super().finish(y, local, message, state, client)
        if not y.is_meta and int(client.round) == 3 and int(client.examples) == LARGEST:
            FAULT
        return upload, after
'''
RAISES = 'raise RuntimeError("the flux capacitor is empty")'
DIVERGES = "upload = upload._replace(delta=upload.delta * float('nan'))"
# Client 7 is the only one that holds so many examples.
SHARES = [i % 7 for i in range(7 * 20)] + [7] * 33
LARGEST = 33


@pytest.fixture
def write_job(tmp_path, monkeypatch):
    """Writes a user's module with a fault; returns the job and the environment to find it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_module", raising=False)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(len(SHARES), 4)), draw.integers(0, 3, len(SHARES))
    np.savez(tmp_path / "data.npz", x=x, y=y, client=np.array(SHARES))

    def go(fault, **changes):
        code = MODULE.replace("FAULT", fault).replace("LARGEST", str(LARGEST))
        (tmp_path / "user_module.py").write_text(code)
        job = write(
            tmp_path,
            task=None,
            data={"kind": "arrays", "path": str(tmp_path / "data.npz")},
            model={"name": "linear"},
            cohort={"kind": "uniform", "size": 8},
            algorithm={"name": "user_module.Mine"},
            rounds=6,
            checkpoint={"every": 1},
            **changes,
        )
        return job, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    return go


@pytest.mark.parametrize(("ranks", "backend"), [(1, "auto"), (3, "mpi"), (2, "gloo")])
def test_an_algorithm_raises(write_job, tmp_path, ranks, backend):
    job, env = write_job(RAISES, comm={"backend": backend, "timeout_s": 60.0})
    start = finish_mpi if backend == "mpi" else finish
    done = start(ranks, "run", job, "--out", tmp_path / "run", env=env)
    assert done.returncode not in (0, 2, 3, 75)
    told = [line for line in done.stderr.splitlines() if "client 7, round 4" in line]
    assert len(told) == 1, done.stderr
    assert "RuntimeError: the flux capacitor is empty" in told[0]
    if ranks > 1:
        assert f"of {ranks}]" in told[0]
        assert read_report(tmp_path / "run/ranks") == told[0]
    # That of round 3 was on its way: a single rank commits it alone.
    assert outcome(tmp_path / "run").round == (3 if ranks == 1 else 2)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=long_form), 3])
def test_an_upload_is_not_finite(write_job, tmp_path, ranks):
    """Exit code 3, one line; with the fault mended the run goes on from the last checkpoint."""
    run = tmp_path / "run"
    job, env = write_job(DIVERGES)
    done = finish_mpi(ranks, "run", job, "--out", run, env=env)
    assert done.returncode == 3, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "DivergedError" in line]
    assert "client 7 on rank" in told
    assert "round 4" in told
    assert "'delta' is not finite" in told
    assert "Traceback" not in done.stderr
    assert outcome(run).round == 3
    write_job("pass")
    again = finish(2, "resume", run, env=env)
    assert again.returncode == 0, again.stderr
    whole = tmp_path / "whole"
    fine = finish(1, "run", job, "--out", whole, env=env)
    assert fine.returncode == 0, fine.stderr
    assert outcome(run) == outcome(whole)


@pytest.mark.parametrize(("rank", "every"), [(0, False), (1, True)])
def test_a_data_error_on_one_rank(tmp_path, rank, every):
    """One line, and no rank waits for ever: for the rank that loads for all, or where all load."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from hpcfl.data.sources.digits import Digits\n"
        "from hpcfl.errors import DataError\n"
        f"Digits.maps_files = {every}\n"
        f"if os.environ['RANK'] == '{rank}':\n"
        "    def load(self, seed):\n"
        "        raise DataError('digits.npz: damaged, expected an archive')\n"
        "    Digits.load = load\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = finish(3, "run", write(tmp_path), "--out", tmp_path / "run", env=env)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if "Error" in line]
    assert lines == ["DataError: digits.npz: damaged, expected an archive"]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_wrong_job_says_so_once(tmp_path, ranks):
    job = write(tmp_path, algorithm={"name": "fedhbm", "betta": 0.5})
    done = finish(ranks, "run", job, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert len([line for line in done.stderr.splitlines() if "betta" in line]) == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_more_ranks_than_clients(tmp_path):
    data = {"partition": {"kind": "iid"}, "clients": 2}
    job = write(tmp_path, data=data)
    done = finish(3, "run", job, "--out", tmp_path / "run")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "Error" in line]
    assert "3 ranks for 2 clients" in line


def test_more_threads_than_cores(tmp_path):
    """One line, before any data is looked for."""
    job = write(tmp_path, task="cifar10-lenet", data={"root": "nowhere"})
    threads = 1 + len(os.sched_getaffinity(0)) // 2
    done = finish(2, "run", job, f"threads={threads}", "--out", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "Error" in line]
    assert line.startswith("JobError: threads: ")
    assert not (tmp_path / "run").exists()


def test_a_segment_of_one_rank_is_deleted(tmp_path):
    """The rank that lost it says so, once; the last checkpoint stands."""
    run, go = tmp_path / "run", tmp_path / "go"
    job = write(tmp_path, checkpoint={"every": 4, "keep": 1}, rounds=16)
    with Going(2, "run", job, "--out", run, env=held(10, go)) as going:
        going.wait_until(lambda: rounds(run) >= 10)
        (segment,) = (run / "stores").glob("*-r0001-*.h5")
        segment.unlink()
        go.touch()
        code, _, err = going.end()
    assert code == 1, err
    (told,) = [line for line in err.splitlines() if "Error" in line]
    assert told.startswith(f"LostFileError: {segment}: was deleted while the run was alive")
    start = [entry for entry in RunDir(run).history_entries() if "session" in entry][-1]
    assert start["outcome"]["message"] == told  # of rank 1, written by rank 0
    assert "Traceback" not in err
    assert committed(run / "checkpoints")[-1].round in (4, 8)  # as far as the disk was by then


@pytest.mark.parametrize(
    ("ranks", "rank", "backend"),
    [(3, 1, "mpi"), pytest.param(2, 0, "mpi", marks=long_form), (2, 1, "gloo")],
)
def test_the_disk_is_full_for_one_rank(tmp_path, ranks, rank, backend):
    """Every launcher is told the exit code of a disk, and the line says which file."""
    env = {**changed("full"), "HPCFL_TEST_RANK": str(rank), "HPCFL_TEST_ROUND": "9"}
    job = write(tmp_path, comm={"backend": backend, "timeout_s": 60.0})
    done = finish_mpi(ranks, "run", job, "--out", tmp_path / "run", env=env)
    assert done.returncode == 74, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "DiskError" in line]
    assert line.startswith(f"[rank {rank} of {ranks}] DiskError: {tmp_path}/run/stores/")
    assert "No space left on device" in line
    assert outcome(tmp_path / "run").round == 8


@pytest.mark.parametrize(
    ("way", "codes"),
    [
        ("one", [1, 1, 1]),
        ("two", [74, 74, 74]),
        ("three", [74, 74, 74]),
        ("last", [74, 74, 74]),
        ("hangs", [74, 74, 9]),
    ],
)
def test_all_ranks_end_by_themselves_with_the_code(tmp_path, way, codes):
    """As under Slurm, which calls ranks that MPI aborts killed, and would start them again.

    With "last", rank 0 fails while the others leave the group; with "hangs", rank 2 never hears.
    """
    mpirun(3, ROOT / "tests/parallel/failing.py", tmp_path, way)
    assert [int((tmp_path / f"code-{rank}").read_text()) for rank in range(3)] == codes
