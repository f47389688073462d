"""`hpcfl export --record`: reports read the copy like the run, and it names no host or folder."""

import os
import socket

import pytest

from tests.rundirs import log_of, starts, text

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
    names += ["digests.json", "packages.txt", "README.md"]
    assert (done.code, done.out) == (0, [str(copy / name) for name in names])
    assert {path.name for path in copy.iterdir()} == set(names)
    assert (copy / "log.jsonl").read_bytes() == (run / "log.jsonl").read_bytes()
    for layout in ("runs", "paper"):
        ours, theirs = (hpcfl("report", at, "--layout", layout) for at in (copy, run))
        assert (ours.code, ours.out) == (theirs.code, theirs.out) != (0, [])
    assert hpcfl("report", copy, "--plot", tmp_path / "plot.png").code == 0
    titles = {line[:11].strip() for line in hpcfl("status", copy).out}
    assert "record" in titles
    assert not titles & {"checkpoint", "on disk"}  # which it never has


def test_it_names_no_host_and_no_folder(job, arrays, tmp_path, hpcfl):
    folder = tmp_path / "O'Brien, A/my data"
    folder.mkdir(parents=True)
    before = arrays()
    job.write_text(job.read_text().replace(str(before), f'"{before.rename(folder / "d.npz")}"'))
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert hpcfl("run", job, "--out", run).code == 0
    assert hpcfl("export", run, "--record", copy).code == 0
    assert "Brien" in (run / "job.yaml").read_text()
    assert f'"{socket.gethostname()}"' in (run / "history.jsonl").read_text()
    content = b"".join(text(copy).values()).decode()
    private = (tmp_path.name, "Brien", "my data", f'"{socket.gethostname()}"')
    assert not [name for name in private if name in content]
    assert "path: d.npz" in content
    assert [rank["host"] for rank in starts(copy)[0]["map"]] == ["host0"]


def test_hosts_are_told_apart(run, tmp_path, hpcfl):
    (start,) = starts(run)
    del start["crc32"]
    start["map"] = [{**start["map"][0], "host": host} for host in ("host1", "cpu", "host0", "cpu")]
    start["notes"] = ["cpu: /home/me"]
    start["request"] = {"round": 2, "overrides": ["data.root=/home/me"]}
    start["outcome"] = {"ending": "failed", "round": 4, "message": "on host1: /home/me/x"}
    (run / "history.jsonl").write_bytes(log_of([start]))
    assert hpcfl("export", run, "--record", tmp_path / "copy").code == 0
    (copied,) = starts(tmp_path / "copy")
    assert [rank["host"] for rank in copied["map"]] == ["host0", "host1", "host2", "host1"]
    assert (copied["device"], copied["map"][0]["device"]) == ("cpu", "cpu")
    assert not {"notes", "request"} & set(copied)
    assert copied["outcome"] == {"ending": "failed", "round": 4, "message": ""}


def test_a_log_with_numbers_that_are_not_finite(job, tmp_path, hpcfl):
    run, copy = tmp_path / "a" / "run", tmp_path / "b" / "run"
    job.write_text(job.read_text().replace("fedhbm", "fedavg, server_lr: 1.0e+13"))
    assert hpcfl("run", job, "local.lr=1.0e+25", "evaluate.every=1", "--out", run).code == 3
    assert b"null" in (run / "log.jsonl").read_bytes()
    assert hpcfl("export", run, "--record", copy).code == 0
    assert (copy / "log.jsonl").read_bytes() == (run / "log.jsonl").read_bytes()
    of_run, of_copy = (hpcfl("report", at, "--format", "csv").out for at in (run, copy))
    assert of_run == of_copy != []


def test_a_record_is_not_written_over(run, job, tmp_path, hpcfl, refused):
    copy = tmp_path / "copy"
    assert hpcfl("export", run, "--record", copy).code == 0
    (copy / "job.yaml").write_bytes((run / "job.yaml").read_bytes())  # as if it had no path
    before = text(copy)
    said = "holds the record of a run, without its models, which cannot be resumed"
    for command in (["resume", copy], ["run", job, "--out", copy]):
        assert said in refused(*command)
    assert said in refused("run", job, "--out", copy, "--continue")
    assert {path: content for path, content in text(copy).items() if path in before} == before


def test_a_branch_stays_one(run, tmp_path, hpcfl):
    branch, copy = tmp_path / "branch", tmp_path / "copy"
    done = hpcfl("resume", run, "--round", 2, "--out", branch, "local.lr=0.01")
    assert done.code == 0, done.err
    assert str(copy / "branches.json") in hpcfl("export", branch, "--record", copy).out
    (tmp_path / "a").mkdir()
    named = branch.rename(tmp_path / "a" / copy.name)
    ours, theirs = (hpcfl("report", at, "--format", "csv") for at in (copy, named))
    assert ours.out == theirs.out != []
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
