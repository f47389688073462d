"""`status` and `report` find the same runs below a folder, however deep."""

import pytest

from hpcfl.io.files import READABLE
from hpcfl.tools.report.collect import collect_runs, find_runs
from tests.rundirs import events_of, log_of, planned, resolved

JOB = "rounds: 2\nalgorithm: {name: fedavg}\nevaluate: {last: 0}\n"
PLAN = "2026-11-21 12:45:24 plan     sweep: 3 runs to do, 0 finished before, 1 at once: as asked\n"


@pytest.fixture
def folder(tmp_path):
    """Runs at three depths, one of them a sweep's, which has one more to begin."""
    root = tmp_path / "runs"
    for name in ("b", "x/a", "x/y/z/c", "x/sweep/s0", ".hidden/h", "x/d.part"):
        path = root / name
        path.mkdir(parents=True)
        (path / "job.yaml").write_bytes(resolved(JOB))
        (path / "log.jsonl").write_bytes(log_of([{"round": 2}]))
    (root / "x" / "sweep" / "sweep.log").write_bytes(events_of(PLAN))
    (root / "x" / "sweep" / "s1.yaml").write_text(planned(JOB))
    for name in ("b/checkpoints/00000002", "b/branch", "x/y/empty"):
        (root / name).mkdir(parents=True)
        if name != "x/y/empty":
            (root / name / "job.yaml").write_text(JOB)  # below a run: not of this folder
    return root


NAMES = ["b", "x/a", "x/sweep/s0", "x/sweep/s1", "x/y/z/c"]


def names(root):
    return [str(path.relative_to(root)) for path in find_runs(root).runs]


def test_runs_at_any_depth(folder):
    """Not those in hidden folders, in run directories, and copies that are being made."""
    assert names(folder) == NAMES
    assert names(folder / "x" / "y") == ["z/c"]


def test_numbers_in_names_count_as_numbers(tmp_path):
    ordered = ["lr0.03", "lr0.1", "size5-seed9", "size5-seed10", "size20-seed0", "x2/a", "x10/a"]
    for name in reversed(ordered):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "job.yaml").write_bytes(resolved(JOB))
    assert names(tmp_path) == ordered


def test_a_run_directory_is_its_own(folder):
    assert list(find_runs(folder / "b").runs) == [folder / "b"]


def test_the_commands_agree(folder, hpcfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = hpcfl("status", folder).out
    assert [line.split()[-1] for line in told[:-1]] == NAMES
    assert told[-1] == "5 runs: 4 finished, 1 not started"
    collect = collect_runs([folder])
    found = [str(run.path.relative_to(folder)) for run in collect.runs]
    assert found == [name for name in NAMES if name != "x/sweep/s1"]
    (note,) = collect.notes
    assert note == f"{folder}/x/sweep: 3 runs: 1 finished, 2 not started"


def test_links_are_no_traps(folder, tmp_path):
    """Those to runs and sweeps count, each once; a loop ends, and no link leads astray."""
    outside = tmp_path / "elsewhere"
    (outside / "run").mkdir(parents=True)
    (outside / "run" / "job.yaml").write_text(JOB)
    (outside / "sweep" / "s").mkdir(parents=True)
    (outside / "sweep" / "s" / "job.yaml").write_text(JOB)
    (outside / "sweep" / "sweep.log").write_bytes(events_of(PLAN))
    for name, target in {
        "loop": folder, "x/y/up": folder / "x", "all": outside, "again": folder / "b",
        "linked": outside / "run", "swept": outside / "sweep", "gone": outside / "none",
    }.items():  # fmt: skip
        (folder / name).symlink_to(target)
    found = names(folder)
    assert {"linked", "swept/s"} < set(found)
    assert len([name for name in found if name in ("b", "again")]) == 1
    assert len(found) == len(NAMES) + 2


def test_a_folder_that_may_not_be_listed_is_told(folder, hpcfl, monkeypatch):
    """The others are shown all the same."""
    from hpcfl.tools.report import collect

    listed = collect._subfolders

    def subfolders(path, unreadable):
        if path.name == "y":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path, unreadable)

    monkeypatch.setattr(collect, "_subfolders", subfolders)
    said = f"{folder}/x/y: cannot be listed: Permission denied; {READABLE}"
    assert hpcfl("status", folder).out[-2:] == [said, "4 runs: 3 finished, 1 not started"]
    assert said in collect_runs([folder]).notes
