"""`hpcfl status DIR --follow`: the status again and again, read from files alone."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.live import Live

from hpcfl.errors import JobError
from hpcfl.runs import log as runlog
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader
from hpcfl.tools import status
from tests.rundirs import cut_log, log_of, resolved

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(job, hpcfl, tmp_path):
    path = tmp_path / "run"
    assert hpcfl("run", job, "--out", path).code == 0
    return path


@pytest.fixture
def pages(monkeypatch):
    """What ``follow`` shows of a folder, a page after each of these steps and one before them."""

    def show(root, *steps, height=40):
        console = Console(file=io.StringIO(), width=300, height=height, color_system=None,
                          force_terminal=True, legacy_windows=False)  # fmt: skip
        waiting = iter(steps)
        shown = []
        monkeypatch.setattr(status, "Live", partial(Recorded, shown))

        def sleep(_):
            step = next(waiting, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(
            status, "time", SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=sleep)
        )
        status.follow(root, console)
        return [str(page).splitlines() for page in shown]

    return show


class Recorded(Live):
    """Keeps every page."""

    def __init__(self, shown, page, **options):
        super().__init__(page, **options)
        self._shown = shown
        shown.append(page)

    def update(self, renderable, *, refresh=False):
        self._shown.append(renderable)
        super().update(renderable, refresh=refresh)


def test_a_page_is_the_status_and_follows_the_run(run, hpcfl, pages):
    whole = hpcfl("status", run).out
    before, after = pages(run, lambda: cut_log(run, 3))
    assert [line for line in before if "checkpoint" not in line] == [
        line for line in whole if "checkpoint" not in line
    ]
    assert before[0].endswith("fedhbm, finished")
    assert after[0].endswith("fedhbm, not running")


def test_where_there_is_no_terminal_it_is_printed_once(run, hpcfl):
    assert hpcfl("status", run, "--follow").out[0] == hpcfl("status", run).out[0]


def test_a_folder_of_runs(run, tmp_path, pages):
    """A line each, the damaged one's too; a run that starts later appears."""
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    run.rename(sweep / "a")

    def two_more():
        for name in ("b", "c"):
            (sweep / name).mkdir()
            (sweep / name / "job.yaml").write_bytes((sweep / "a" / "job.yaml").read_bytes())
        (sweep / "c" / "job.yaml").write_bytes(resolved("rounds: 1\n"))

    before, after = pages(sweep, two_more)
    assert before == ["finished          4 of 4  a", "1 run: 1 finished"]
    assert after[1] == "not running       0 of 4  b"
    assert after[2].startswith("damaged ")
    assert after[-1] == "3 runs: 1 finished, 1 not running, 1 damaged"


def test_a_low_terminal_shows_the_runs_that_are_alive(run, tmp_path, pages, monkeypatch):
    for name in "abcdef":
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "job.yaml").write_bytes((run / "job.yaml").read_bytes())
    monkeypatch.setattr(RunDir, "is_locked", lambda folder: folder.root.name == "e")
    (page,) = pages(tmp_path / "runs", height=5)
    assert page == [
        "alive             0 of 4  e",
        *(f"not running       0 of 4  {name}" for name in "ab"),
        "and 3 more",
        "6 runs: 5 not running, 1 alive",
    ]


def test_a_run_that_goes_away(run, tmp_path, pages):
    with pytest.raises(JobError, match="holds no run"):
        pages(run, lambda: run.rename(tmp_path / "away"))


def test_no_run(tmp_path, refused):
    assert "holds no run" in refused("status", tmp_path, "--follow")


def test_every_line_is_parsed_once(tmp_path, monkeypatch):
    parsed, parse_json = [], runlog.parse_json
    monkeypatch.setattr(runlog, "parse_json", lambda line: parsed.append(line) or parse_json(line))
    path = tmp_path / "log.jsonl"
    reader = LogReader(path)
    assert reader.read() == ()
    log = log_of({"round": t} for t in (1, 2, 3))
    for more in (log[:-30], log[-30:], b""):
        with path.open("ab") as file:
            file.write(more)
        rounds = [entry["round"] for entry in reader.read()]
        assert rounds == [1, 2, 3][: path.read_text().count("\n")]
    assert len(parsed) == 3


@pytest.mark.parametrize("after", [[], [{"round": 2, "x": 7}, {"round": 3}, {"round": 4}]])
def test_a_log_that_a_resume_has_cut_is_read_anew(tmp_path, after):
    """Also where it has grown beyond its old length before anybody looked."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(log_of([{"round": 1}, {"round": 2, "x": 5}]))
    reader = LogReader(path)
    reader.read()
    path.write_bytes(log_of([{"round": 1}, *after]))
    assert reader.read() == ({"round": 1}, *after)


@pytest.mark.slow
def test_ctrl_c_leaves_the_page(run):
    """On a terminal of its own: the alternate screen is entered and left, the exit code is 0."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] |= termios.NOFLSH  # or Ctrl-C throws away what is said right after it
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    command = [sys.executable, "-m", "hpcfl", "status", run, "--follow"]
    # A session of its own, whose terminal this is: Ctrl-C becomes a signal, which a process in the
    # background would have been told to ignore.
    child = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    os.close(theirs)
    said, sent = b"", False
    try:
        while select.select([ours], [], [], 60)[0]:
            try:
                more = os.read(ours, 1 << 16)
            except OSError:  # closed
                break
            said += more
            if b"4 of 4" in said and not sent:
                sent = bool(os.write(ours, b"\x03"))
        assert child.wait(60) == 0, said
    finally:
        child.kill()
        os.close(ours)
    assert said.index(b"\x1b[?1049h") < said.index(b"4 of 4") < said.index(b"\x1b[?1049l")
    assert b"Traceback" not in said
