"""Sweeps: what is run, resumed, skipped or refused, and what comes of it."""

import os

import pytest

from hpcfl.errors import SweepError
from hpcfl.rundir import RunDir
from hpcfl.sweep import spawn
from hpcfl.sweep.grid import read_sweep
from hpcfl.sweep.machine import room
from hpcfl.sweep.play import Outcome
from hpcfl.sweep.todo import plan

SWEEP = """\
job: job.yaml
grid:
  method:
    avg: {algorithm: {name: fedavg}}
    hbm: {algorithm: {name: fedhbm}}
  seed: [0, 1]
"""
NAMES = ["avg-seed0", "avg-seed1", "hbm-seed0", "hbm-seed1"]


@pytest.fixture
def file(job, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SWEEP)
    return path


def actions(path, root):
    return [(run.point.name, run.action, run.done) for run in plan(read_sweep(path), root)]


def events(root):
    """(event, run) of every line of the sweep's log."""
    lines = (root / "sweep.log").read_text().splitlines()
    return [(line.split()[2], line.split()[3].rstrip(":")) for line in lines]


def test_all_runs_are_made_reported_and_skipped_the_next_time(file, tmp_path, hpcfl):
    root = tmp_path / "out"
    done = hpcfl("sweep", file, "--out", root, "--parallel", 2)
    assert done.code == 0, done.err
    assert "| avg-seed0 | fedavg " in done.text
    assert "+- " in done.text  # over the two seeds
    assert any(" finished hbm-seed1: 4 rounds, accuracy " in line for line in done.err)
    assert {event for event in events(root) if event[0] == "finished"} == {
        ("finished", name) for name in NAMES
    }
    before = {path: path.stat().st_mtime_ns for path in root.glob("*-seed*/**/*")}
    again = hpcfl("sweep", file, "--out", root)
    assert (again.code, again.out) == (0, done.out)
    assert sum("finished before" in line for line in again.err) == len(NAMES) + 1
    assert {path: path.stat().st_mtime_ns for path in root.glob("*-seed*/**/*")} == before
    assert hpcfl("report", root).out == done.out


def test_a_dry_run_starts_nothing(file, tmp_path, hpcfl):
    done = hpcfl("sweep", file, "--out", tmp_path / "out", "--dry-run", "rounds=3")
    assert done.code == 0
    assert "| hbm-seed1 | start | rounds=3  algorithm={name: fedhbm}  seed=1 |" in done.out
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_taken_into_account(file, job, tmp_path, hpcfl):
    root = tmp_path / "out"
    run = ("run", job, "algorithm={name: fedavg}")
    assert hpcfl(*run, "seed=0", "--out", root / "avg-seed0").code == 0
    assert hpcfl(*run, "seed=1", "--out", root / "avg-seed1").code == 0
    newest = root / "avg-seed1/checkpoints/00000004/manifest.json"
    newest.unlink()  # as a kill after round 2 leaves it
    assert actions(file, root) == [
        ("avg-seed0", "skip", 4), ("avg-seed1", "resume", 2), ("hbm-seed0", "start", 0),
        ("hbm-seed1", "start", 0),
    ]  # fmt: skip


def test_a_run_of_another_job_is_told_with_the_key(file, job, tmp_path, hpcfl, refused):
    root = tmp_path / "out"
    run = ("run", job, "algorithm={name: fedavg}", "seed=0", "local.lr=0.2")
    assert hpcfl(*run, "--out", root / "avg-seed0").code == 0
    line = refused("sweep", file, "--out", root)
    assert f"s.yaml:4: {root}/avg-seed0 holds a run of another job: local.lr is 0.2 there" in line
    assert not (root / "sweep.log").exists()


def test_twice_at_once_is_refused(file, tmp_path, refused):
    root = tmp_path / "out"
    root.mkdir()
    with RunDir(root) as held:
        held.lock("a sweep")
        assert "a sweep is alive in this directory" in refused("sweep", file, "--out", root)


def test_a_live_run_is_refused(file, job, tmp_path, hpcfl, refused):
    root = tmp_path / "out"
    assert hpcfl("run", job, "algorithm={name: fedavg}", "seed=0",
                 "--out", root / "avg-seed0").code == 0  # fmt: skip
    with RunDir(root / "avg-seed0") as held:
        held.lock()
        assert "a run is alive in this directory" in refused("sweep", file, "--out", root)


def test_under_mpirun_is_refused(file, tmp_path, monkeypatch, refused):
    monkeypatch.setenv("MPI_LOCALRANKID", "0")
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    assert "start a sweep without mpirun" in refused("sweep", file, "--out", tmp_path / "out")


def test_a_failed_run_stops_no_other(job, tmp_path, hpcfl):
    path = tmp_path / "s.yaml"
    path.write_text(
        "job: job.yaml\ngrid:\n  lr: {wild: {local.lr: 1.0e+38}, tame: {local.lr: 0.1}}\n"
    )
    root = tmp_path / "out"
    done = hpcfl("sweep", path, "--out", root, "--parallel", 1)
    assert done.code == 3, done.err
    assert events(root)[1:] == [
        ("started", "wild"), ("failed", "wild"), ("started", "tame"), ("finished", "tame"),
    ]  # fmt: skip
    (line,) = [line for line in done.err if " failed " in line and "wild: " in line][:1]
    assert "exit code 3: DivergedError: " in line
    assert done.err[-1].startswith("SweepError: 1 of 2 runs failed: wild; ")
    assert "| tame" in done.text
    assert f"plot: {root / 'report.png'}" in done.err


@pytest.mark.parametrize(
    ("codes", "finished", "code"),
    [
        ([3, 3], [], 3), ([3, 1], [], 1), ([2], [], 2), ([2], ["a"], 1), ([-9], ["a"], 1),
        ([75, 3], [], 1),
    ],
)  # fmt: skip
def test_exit_codes(tmp_path, codes, finished, code):
    failed = {f"r{index}": code for index, code in enumerate(codes)}
    with pytest.raises(SweepError, match="runs failed: r0") as caught:
        Outcome(tmp_path, finished, failed).check()
    assert caught.value.exit_code == code


def test_room_is_kept_for_what_the_present_runs_will_take():
    assert room(10, 5, [5])
    assert not room(9, 5, [0])  # 5 of them are spoken for
    assert room(10, 5, [0])
    assert not room(4, 5, [9])


def test_open_mpi_binds_no_run_to_the_first_core(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    found = spawn._environment(2, ["1", "3"])
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["PRTE_MCA_hwloc_default_binding_policy"] == "none"
    assert found["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert "CUDA_VISIBLE_DEVICES" not in spawn._environment(2, []).keys() - os.environ.keys()
