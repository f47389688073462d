"""The command line itself, and status."""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from hpcfl import __version__
from hpcfl.cli import main as cli
from hpcfl.cli.main import main
from hpcfl.io import atomic
from hpcfl.io.heartbeat import Heartbeats, RankProgress
from hpcfl.runs.layout import RunDir
from tests.forked import finish
from tests.rundirs import cut_log, log_of


@pytest.fixture
def run(job, tmp_path, hpcfl):
    out = tmp_path / "run"
    assert hpcfl("run", job, "--out", out).code == 0
    return out


def full(*streams):
    """Nothing can be written to these streams of this process."""
    for stream in streams:
        os.dup2(os.open("/dev/full", os.O_WRONLY), stream)


def unread():
    """Nobody reads what this process prints."""
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)


def interrupted():
    """Ctrl-C comes while `hpcfl list` works, and its line cannot be printed."""
    full(1, 2)
    cli.resolve_name = lambda _: lambda _: os.kill(os.getpid(), signal.SIGINT)


def lines(done):
    assert (done.code, done.err) == (0, [])
    width = len(re.match(r"run +", done.out[0])[0])
    return {line[:width].strip(): line[width:] for line in done.out}


def test_help_and_version(capsys):
    for arguments in (["--help"], ["run", "--help"], ["data", "show", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
    assert capsys.readouterr().out.endswith(f"hpcfl {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ran"],
        ["run"],
        ["export", "x", "--round", "two"],
        ["status", "x", "y"],
        ["run", "j", "--outt", "x"],
    ],
)
def test_wrong_arguments_are_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: hpcfl" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "resume", "plan", "sweep"])
def test_a_setting_with_dashes_is_told_how_it_is_written(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "quickstart", "--rounds", "5"])
    said = capsys.readouterr().err
    assert said.endswith(
        "unrecognized arguments: --rounds 5; settings of a job have no dashes: rounds=5\n"
    )


@pytest.mark.parametrize("command", ["run", "resume", "check", "plan", "sweep"])
def test_what_is_missing_is_told_and_no_more(command, capsys):
    with pytest.raises(SystemExit):
        main([command])
    (_, missing) = capsys.readouterr().err.rstrip().rsplit("required: ", 1)
    assert missing in {"job", "dir", "sweep"}


def test_overrides_stand_anywhere(job, hpcfl):
    done = hpcfl("check", job, "rounds=8", "--data", "seed=3", "rounds=9")
    assert "9 rounds, float32, seed 3" in done.text


@pytest.mark.slow
def test_nobody_reads_on():
    """As in `hpcfl list | head -1`: no traceback."""
    assert finish(1, "list", "models", prepare=unread) == (1, "", "")


def test_an_error_is_one_line_whatever_is_in_it(job, refused):
    line = refused("check", job, '"a\\nb"=3')
    assert "a job has no" in line


def test_report_of_a_run(run, tmp_path, hpcfl):
    done = hpcfl("report", run, "--format", "csv", "--plot", tmp_path / "r.png")
    assert (done.code, done.err) == (0, [f"plot: {tmp_path / 'r.png'}"])
    assert len(done.out) == 2
    assert done.out[1].startswith("run,fedhbm,4,4,")
    assert (tmp_path / "r.png").exists()


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "latex"])
def test_a_report_draws_only_when_asked(run, tmp_path, monkeypatch, hpcfl, form):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    done = hpcfl("report", run, "--format", form)
    assert (done.code, done.err) == (0, [])
    assert not list((tmp_path / "runs").iterdir())
    drawn = hpcfl("report", run, "--format", form, "--plot")
    assert (drawn.code, drawn.out) == (0, done.out)
    assert drawn.err == ["plot: runs/report.png"]
    assert (tmp_path / "runs/report.png").exists()


@pytest.mark.parametrize("option", [("--y", "train_loss"), ("--x", "bytes")])
def test_an_option_of_the_plot_asks_for_one(run, tmp_path, monkeypatch, hpcfl, option):
    monkeypatch.chdir(tmp_path)
    assert hpcfl("report", run, *option).err == ["plot: runs/report.png"]
    assert hpcfl("report", run, *option, "--plot", "a.png").err == ["plot: a.png"]


def test_a_report_draws_what_was_asked_for(run, tmp_path, monkeypatch, hpcfl):
    monkeypatch.chdir(tmp_path)
    done = hpcfl("report", run, "--format", "csv", "--y", "train_loss")
    assert (done.code, done.err) == (0, ["plot: runs/report.png"])
    assert (tmp_path / "runs/report.png").exists()
    done = hpcfl("report", run, "--y", "drift")
    assert (done.code, done.out) == (2, [])  # checked before the tables
    assert "no round in log.jsonl has 'drift'" in done.err[0]


def test_a_plot_that_cannot_be_written(run, tmp_path, monkeypatch, hpcfl, refused):
    """It is refused before the table; without a plot nothing is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")  # no folder for a picture
    assert "runs/report.png: cannot be written: " in refused("report", run, "--plot")
    assert hpcfl("report", run).code == 0


@pytest.mark.slow
def test_a_disk_that_is_full_has_an_exit_code_of_its_own(run, tmp_path, monkeypatch, hpcfl):
    """Of a plot, after the table; and of what is printed."""
    monkeypatch.chdir(tmp_path)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", refuse)
        for words, file in (((), "runs/report.png"), (("x.pdf",), "x.pdf")):
            done = hpcfl("report", run, "--plot", *words)
            assert (done.code, bool(done.out)) == (74, True)
            (line,) = done.err
            assert line.startswith(f"DiskError: {tmp_path / file}: cannot write ")
            assert "bytes: No space left on device; make room" in line
    ended = finish(1, "list", "models", prepare=partial(full, 1))
    assert ended == (74, "", "DiskError: No space left on device\n")


def test_a_report_laid_out_as_papers_do(run, tmp_path, monkeypatch, hpcfl):
    """The digits' accuracies, in LaTeX; a target of which no paper knows is refused."""
    monkeypatch.chdir(tmp_path)
    done = hpcfl("report", run, "--layout", "paper", "--format", "latex")
    assert (done.code, done.err) == (0, [])
    assert done.out[0] == "% needs \\usepackage{booktabs}"
    assert any(line.strip().startswith("fedhbm & ") for line in done.out)
    done = hpcfl("report", run, "--layout", "paper", "--target", "70")
    assert (done.code, done.out) == (2, [])
    assert "no paper prints a centralised accuracy" in done.err[0]


def test_a_report_in_several_pictures_against_bytes(run, tmp_path, hpcfl):
    plots = [tmp_path / "a.png", tmp_path / "a.pdf"]
    asked = [word for path in plots for word in ("--plot", path)]
    done = hpcfl("report", run, "--layout", "seeds", "--x", "bytes", *asked)
    assert (done.code, done.err) == (0, [f"plot: {path}" for path in plots])
    assert all(path.exists() for path in plots)


def test_a_report_of_a_sweep_is_drawn_beside_its_runs(run, tmp_path, monkeypatch, hpcfl):
    """And it names the runs that have nothing to draw."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep" / "new").mkdir(parents=True)
    (tmp_path / "sweep" / "new" / "job.yaml").write_bytes((run / "job.yaml").read_bytes())
    run.rename(tmp_path / "sweep" / "old")
    done = hpcfl("report", "sweep", "--plot")
    assert (done.code, done.err[-1]) == (0, "plot: sweep/report.png")
    assert done.err[0].startswith("plot: without sweep/new, ")
    assert (tmp_path / "sweep" / "report.png").exists()


def test_status_of_a_finished_run(run, hpcfl):
    said = lines(hpcfl("status", run))
    assert said["run"] == f"{run}: fedhbm, finished"
    assert said["rounds"] == "4 of 4"
    shares = re.fullmatch(
        r".+ rounds/s over the last 4, (.+)% of the time for batches, (.+)% for states",
        said["pace"],
    )
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    keys = ("data_s", "store_s", "wall_s")
    data, store, wall = (sum(entry[key] for entry in log if entry["round"]) for key in keys)
    assert 0 < data < wall
    assert 0 < store < wall
    assert shares.groups() == (f"{100 * data / wall:.1f}", f"{100 * store / wall:.1f}")
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    assert said["train loss"] == f"{last['train_loss']:.4g}"
    assert said["accuracy"] == f"{last['test_accuracy']:.4g} after round 4"
    assert said["checkpoint"].startswith("round 4, 0:")
    assert "from round 0, 1 rank(s)" in said["last start"]
    assert f"hpcfl {__version__}" in said["versions"]


def test_status_tells_the_scores_that_the_log_has(run, hpcfl):
    assert "objective" not in lines(hpcfl("status", run))
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    log[2] |= {"test_accuracy": 0.75}
    log[4] |= {"test_accuracy": 0.5, "test_top5_accuracy": 0.875, "train_objective": 1.5}
    log[4] |= {"client_accuracy_mean": 0.625, "client_accuracy_worst_decile": 0.125}
    log[0] |= {"test_accuracy": 0.75 - 2**-10}
    for record in log:
        record.pop("crc32")
    shutil.rmtree(run / "checkpoints")  # whose log it was
    (run / "log.jsonl").write_bytes(log_of(log))
    said = lines(hpcfl("status", run))
    assert said["objective"] == "1.5 after round 4"
    assert said["top 5"] == "0.875 after round 4"
    assert said["clients mean"] == "0.625 after round 4, 0.125 in the worst decile"
    assert said["best"] == "accuracy 0.75 after round 2, chosen on the test set"
    for record in log:
        record.pop("crc32", None)
    log[2] |= {"validation_accuracy": 0.25}
    log[4] |= {"validation_accuracy": 0.375}
    (run / "log.jsonl").write_bytes(log_of(log))
    said = lines(hpcfl("status", run))
    assert said["validation"] == "0.375 after round 4"
    chosen = "validation accuracy 0.375 after round 4, where the test accuracy is 0.5"
    assert said["best"] == chosen


def test_status_of_a_run_at_work(run, hpcfl):
    log = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text("".join(log[:-2]) + log[-2][:20])  # round 3 is being written
    (run / "checkpoints" / "00000006").mkdir()  # not committed yet
    old = run / "checkpoints" / "00000002" / "manifest.json"
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    (run / "checkpoints" / "00000004" / "manifest.json").unlink()  # being pruned
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = lines(hpcfl("status", run))
    assert said["run"].endswith("fedhbm, alive")
    assert said["rounds"].startswith("2 of 4, 0:")
    assert said["rounds"].endswith(" left")
    assert said["checkpoint"].startswith("round 2, 2:")


def test_status_says_where_the_ranks_of_a_live_run_are(run, hpcfl, refused):
    """As far as the last of them is; who was not heard of lately is named; the dead say nothing."""
    progresses = RankProgress(3, "training", 9, waits=True), RankProgress(3, "checkpointing", 8)
    folder = run / "ranks" / "0123abcd"
    folder.mkdir()
    for rank, pulse in enumerate(progresses):
        Heartbeats(run / "ranks", folder.name, rank).open(pulse)
    path = folder / "0001.json"
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = lines(hpcfl("status", run))["ranks"]
        stale = json.loads(path.read_text())
        stale.pop("crc32")
        path.write_bytes(log_of([{**stale, "time": time.time() - 600}]))
        late = lines(hpcfl("status", run))["ranks"]
        (folder / "0002.json").write_text("{}")
        assert f"{folder}/0002.json: found no heartbeat of a rank: " in refused("status", run)
    assert re.fullmatch(r"2: in round 3, checkpointing, oldest heartbeat \d+ s ago", fresh)
    pattern = r"2: in round 3, checkpointing, oldest heartbeat \d{3,} s ago: rank 1 \(host .+\)"
    assert re.fullmatch(pattern, late)
    assert "ranks" not in lines(hpcfl("status", run))


def test_a_file_is_no_run(job, refused):
    assert "holds no run" in refused("status", job)


def test_status_of_a_dead_run(run, hpcfl):
    cut_log(run, 3)
    said = lines(hpcfl("status", run))
    assert said["run"].endswith("fedhbm, not running")
    assert said["rounds"] == "3 of 4"
    assert said["resume"] == f"hpcfl resume {run}"


def test_a_finished_run_is_not_taken_up_again(run, refused, hpcfl):
    assert "resume" not in lines(hpcfl("status", run))
    done = hpcfl("resume", run)
    assert done.code == 0
    assert done.err[0] == f"{run}: finished, nothing to do"
    assert f"{run}: is the directory of a run; use `hpcfl resume" in refused("run", run)


def test_list_bears_capital_letters(hpcfl):
    assert hpcfl("list", "FedMIM").out == hpcfl("list", "fedmim").out


def test_status_before_the_first_round(run, hpcfl):
    shutil.rmtree(run / "checkpoints")
    for name in ("log.jsonl", "history.jsonl", "lock"):
        (run / name).unlink()
    said = lines(hpcfl("status", run))
    assert said["rounds"] == "0 of 4"
    assert "pace" not in said
    assert "versions" not in said


def test_status_changes_nothing(run, hpcfl):
    def look():
        return {path: path.stat().st_mtime_ns for path in run.rglob("*")}

    before = look()
    assert hpcfl("status", run).code == 0
    assert look() == before


def test_status_of_what_is_no_run(tmp_path, refused):
    assert "holds no run" in refused("status", tmp_path)
    assert "holds no run" in refused("status", tmp_path / "absent")


def test_damaged_history_is_told(run, refused):
    (run / "history.jsonl").write_text('{"time"\n')
    assert "history.jsonl:1: is damaged: " in refused("status", run)


def test_a_look_at_the_lock_does_not_stop_a_start(run, monkeypatch):
    """Someone looks just when a run starts: the run tries again."""
    looker = os.open(run / "lock", os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    naps = []

    def nap(seconds):
        naps.append(seconds)
        os.close(looker)

    monkeypatch.setattr("hpcfl.io.lock.time.sleep", nap)
    with RunDir(run) as folder:
        folder.lock()
        assert len(naps) == 1
        assert RunDir(run).is_locked()
    assert not RunDir(run).is_locked()


def test_a_checkpoint_of_a_clock_that_was_ahead(hpcfl, job, tmp_path):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    for manifest in run.glob("checkpoints/*/manifest.json"):
        os.utime(manifest, (4e9, 4e9))
    assert lines(hpcfl("status", run))["checkpoint"] == "round 4, 0:00:00 ago"
    assert hpcfl("resume", run).code == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("words", "code", "prepare"),
    [
        (["status", "nowhere"], 2, partial(full, 1, 2)),
        (["list", "models"], 74, partial(full, 1, 2)),
        (["list"], 130, interrupted),
    ],
)
def test_the_exit_code_stands_where_standard_error_is_full(words, code, prepare):
    """Of a wrong argument, of a full standard output and of Ctrl-C."""
    assert finish(1, *words, prepare=prepare) == (code, "", "")
