import errno
import fcntl
import os
from pathlib import Path
from threading import Event, Lock

import pytest

from hpcfl.errors import JobError
from hpcfl.runs.layout import RunDir
from hpcfl.tools.report.collect import collect_runs, find_runs
from hpcfl.tools.status import status
from tests.rundirs import events_of, log_of, planned, resolved

JOB = "rounds: 2\nalgorithm: {name: fedavg}\nevaluate: {last: 0}\n"
PLAN = "2026-11-21 12:45:24 plan     sweep: 5 runs to do, 1 finished before, 1 at once: as asked\n"


@pytest.fixture
def sweep(tmp_path):
    root = tmp_path / "sweep"
    for name, done in (("a", 2), ("b", 1), ("c", 1), ("d", 0)):
        (root / name).mkdir(parents=True)
        (root / name / "job.yaml").write_bytes(resolved(JOB))
        (root / name / "log.jsonl").write_bytes(log_of({"round": t} for t in range(1, done + 1)))
    return root


def states(standing):
    return {run.name: run.state for run in standing.runs}


def test_where_the_runs_of_a_sweep_stand(sweep):
    """Of 6 points: a finished, b failed, c alive, d not running, e failed without a directory."""
    (sweep / "sweep.log").write_bytes(
        events_of(
            "2026-11-20 12:00:00 failed   d: exit code 1: of an earlier start\n"
            + PLAN
            + "2026-11-21 12:50:00 failed   a: exit code 1: a resume mended it\n"
            "2026-11-21 12:50:00 started  b: log b.log\n"
            "2026-11-21 12:51:00 failed   b: exit code 3: the loss is nan\n"
            "2026-11-21 12:52:00 stopped  d: Stopped: with a checkpoint\n"
            "2026-11-21 12:53:00 failed   e: exit code 2: no such data\n"
        )
    )
    with (sweep / "c" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        standing = collect_runs([sweep])
    assert states(standing) == {"a": "finished", "b": "failed", "c": "alive", "d": "not running"}
    assert list(standing.notes) == [
        f"{sweep}: 6 runs: 1 finished, 2 failed, 1 alive, 1 not running, 1 not started",
        f"{sweep}/b: failed: exit code 3: the loss is nan",
        f"{sweep}/e: failed: exit code 2: no such data",
    ]


@pytest.mark.parametrize("command", [status, lambda root: collect_runs([root])])
def test_runs_that_may_be_alive_are_watched_at_the_same_time(sweep, command, monkeypatch):
    """Where files cannot be locked, each run's heartbeats are watched for seconds."""
    asked, lock, three_were_asked = [], Lock(), Event()

    def is_locked(folder):
        with lock:
            asked.append(folder.root.name)
            if len(asked) == 3:
                three_were_asked.set()
        assert three_were_asked.wait(60), f"only {asked} were watched at once"
        return False

    monkeypatch.setattr(RunDir, "is_locked", is_locked)
    command(sweep)
    assert {"b", "c", "d"} <= set(asked)


def test_a_run_that_ends_while_it_is_read_is_finished(sweep, monkeypatch):
    """Its log was read before its lock was free."""

    def is_locked(folder):
        folder.log.write_bytes(log_of({"round": t} for t in (1, 2)))
        return False

    monkeypatch.setattr(RunDir, "is_locked", is_locked)
    assert states(collect_runs([sweep / "b"])) == {"b": "finished"}


def test_jobs_written_ahead_are_points_too(sweep):
    """As where each part of a sweep plans its own points."""
    (sweep / "sweep.log").write_bytes(events_of(PLAN.replace("5 runs", "1 runs")))
    for name in "abcdefgh":
        (sweep / f"{name}.yaml").write_text(planned(JOB))
    (sweep / "sweep.yaml").write_text("job: ../a.yaml\ngrid: {seed: [0, 1]}\n")  # of the user
    (sweep / "base.yaml").write_text(JOB)
    (sweep / "folder.yaml").mkdir()
    (sweep / "link.yaml").symlink_to("nothing")
    (note,) = collect_runs([sweep]).notes
    assert note == f"{sweep}: 8 runs: 1 finished, 3 not running, 4 not started"


def test_a_failure_that_was_tried_again_is_over(sweep):
    (sweep / "sweep.log").write_bytes(
        events_of(
            PLAN + "2026-11-21 12:51:00 failed   b: exit code 3: nan\n"
            "2026-11-21 12:52:00 resumed  b: from round 1\n"
        )
    )
    assert states(collect_runs([sweep]))["b"] == "not running"


def test_folders_of_sweeps_stand_for_their_runs(sweep):
    (sweep / "a" / "branch").mkdir()
    (sweep / "a" / "branch" / "job.yaml").write_bytes(
        resolved(JOB)
    )  # below a run: not of this folder
    standing = collect_runs([sweep.parent])
    assert [run.name for run in standing.runs] == ["a", "b", "c", "d"]
    assert standing.notes == []  # nobody wrote a sweep.log
    assert [run.name for run in collect_runs([sweep / "b", sweep / "a"]).runs] == ["b", "a"]


def test_a_pattern_also_matches_the_files_beside_a_run(sweep):
    paths = [sweep / name for name in ("a", "a.log", "a.yaml", "b")]
    assert [run.name for run in collect_runs(paths).runs] == ["a", "b"]
    with pytest.raises(JobError, match=r"c\.log: "):
        collect_runs([sweep / "a", sweep / "c.log"])


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(JobError, match=r"is empty, so this is no run"):
        collect_runs([tmp_path])


def unwrapped(done):
    """All that a command said, without the spaces."""
    return "".join("".join([*done.out, *done.err]).split())


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_link_to_itself_beside_runs_is_told(sweep, hpcfl, command):
    (sweep / "loop").symlink_to("loop")
    (sweep / ".loop").symlink_to(".loop")  # hidden: nobody asks
    done = hpcfl(command, sweep)
    assert done.code == 0, done.err
    told = unwrapped(done)
    assert told.count(f"{sweep}/loop:cannotberead:Toomany") == 1
    assert "/.loop" not in told
    assert any("a" in line.split() for line in done.out)


@pytest.fixture
def private(tmp_path, monkeypatch):
    """Another user's folder; made here, as root may search every one."""
    whole = Path.lstat
    folder = tmp_path / "sweep" / "private"

    def lstat(path):
        if path.parent == folder:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return whole(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    return folder


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_private_folder_is_no_run(sweep, private, hpcfl, command):
    private.mkdir()
    done = hpcfl(command, sweep)
    assert done.code == 0, done.err
    assert unwrapped(done).count(f"{private}/job.yaml:cannotbe") == 1
    assert list(find_runs(sweep).runs) == [sweep / name for name in "abcd"]


def test_a_run_of_a_sweep_that_cannot_be_searched_stays_a_run(sweep, private, hpcfl):
    private.mkdir()
    (sweep / "sweep.log").write_bytes(events_of(PLAN))
    (sweep / "private.yaml").write_text(planned(JOB))
    found = find_runs(sweep)
    assert private in found.runs
    assert not found.unreadable
    assert any(line.startswith("damaged") for line in hpcfl("status", sweep).out)
