"""`hpcfl export --record`: reports read the copy like the run, and it names no host or folder."""

import os
import socket

import pytest

from hpcfl.run_dir.export_record import _FOLDERS, _without_names
from tests.rundirs import starts, text

pytestmark = pytest.mark.usefixtures("own_process")


@pytest.fixture
def run(job, tmp_path, hpcfl):
    out = tmp_path / "runs" / "mine"
    assert hpcfl("run", job, "--out", out).code == 0
    return out


def test_a_report_reads_it_like_the_run(run, tmp_path, hpcfl):
    copy = tmp_path / "records" / "mine"
    done = hpcfl("export", run, "--record", copy)
    names = ["job.yaml", "history.jsonl", "log.jsonl"]
    assert (done.code, done.out) == (0, [str(copy / name) for name in names])
    assert {path.name for path in copy.iterdir()} == set(names)
    assert (copy / "log.jsonl").read_bytes() == (run / "log.jsonl").read_bytes()
    for layout in ("runs", "paper", "hours"):
        ours, theirs = (hpcfl("report", at, "--layout", layout) for at in (copy, run))
        assert (ours.code, ours.out) == (theirs.code, theirs.out) != (0, [])
    assert hpcfl("report", copy, "--plot", tmp_path / "plot.png").code == 0


def test_it_names_no_host_and_no_folder(run, tmp_path, hpcfl):
    copy = tmp_path / "copy"
    assert hpcfl("export", run, "--record", copy).code == 0
    private = (str(tmp_path), tmp_path.name, f'"{socket.gethostname()}"')
    assert all(name in (run / "job.yaml").read_text() for name in private[:2])
    assert private[2] in (run / "history.jsonl").read_text()
    content = b"".join(text(copy).values()).decode()
    assert not [name for name in private if name in content]
    assert "path: data.npz" in content
    assert [rank["host"] for rank in starts(copy)[0]["map"]] == ["host0"]


def test_a_branch_stays_one(run, tmp_path, hpcfl):
    branch, copy = tmp_path / "branch", tmp_path / "copy"
    done = hpcfl("resume", run, "--round", 2, "--out", branch, "local.lr=0.01")
    assert done.code == 0, done.err
    assert "branches.json" in hpcfl("export", branch, "--record", copy).out[-1]
    ours, theirs = (
        hpcfl("report", copy, "--format", "csv"),
        hpcfl("report", branch, "--format", "csv"),
    )
    assert ours.out[0] == theirs.out[0]
    assert "at round 2: local.lr 0.1 -> 0.01" in (ours.text + hpcfl("status", copy).text)
    assert str(tmp_path) not in b"".join(text(copy).values()).decode()


def test_of_a_run_that_is_alive_whole_lines_are_copied(run, tmp_path, hpcfl):
    log = run / "log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + whole.splitlines(keepends=True)[-1][:40])
    copy = tmp_path / "copy"
    assert hpcfl("export", run, "--record", copy).code == 0
    assert (copy / "log.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "already; name an empty folder"),
        (["-o", "F.npz"], "--record writes no model"),
        (["--round", "2"], "--record copies the whole log"),
    ],
)
def test_what_it_refuses(options, expected, run, tmp_path, refused):
    before = text(run)
    target = run if not options else tmp_path / "copy"
    line = refused("export", run, "--record", target, *options)
    assert expected in line
    assert text(run) == before


def test_a_folder_without_a_run(tmp_path, refused):
    assert "holds no run" in refused("export", tmp_path, "--record", tmp_path / "copy")
    assert not os.path.lexists(tmp_path / "copy")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/scratch/me/data", "data"),
        ("/data", "data"),
        ("into /home/me/runs/x; 3 rounds/s", "into x; 3 rounds/s"),
        ("a/b, 1 / 2, https://example.org/page", "a/b, 1 / 2, https://example.org/page"),
        ("rank 1 on gpu07: no such file: '/a/b c'", "rank 1 on host0: no such file: 'b c'"),
        ("gpu071 and gpu07.site", "gpu071 and gpu07.site"),
    ],
)
def test_a_text(before, after):
    assert _without_names({"x": [before]}, {"gpu07": "host0"}) == {"x": [after]}
    assert _FOLDERS.sub("", after) == after
