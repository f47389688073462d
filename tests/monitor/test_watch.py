"""The page of a run, read from its files alone."""

import fcntl
import io
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from hpcfl.comm.heartbeat import Heartbeats, RankProgress
from hpcfl.engine.timing import PHASES
from hpcfl.monitor import watch
from hpcfl.report.text_plot import text_plot
from hpcfl.run_dir import log as runlog
from hpcfl.run_dir.log import LogReader
from tests.rundirs import cut_log, log_of, resolved
from tests.signals import not_ignored

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(job, hpcfl, tmp_path):
    path = tmp_path / "run"
    assert hpcfl("run", job, "--out", path).code == 0
    return path


def shown(root, width=100, height=40):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(watch.page_of(root)(console))
    return console.file.getvalue().splitlines()


def test_a_finished_run(run, hpcfl):
    """Not on a terminal: one page, and its end."""
    said = hpcfl("watch", run)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert said.code == 0
    titles = dict(line.split(maxsplit=1) for line in said.out[:8])
    assert titles["run"] == f"{run}: fedhbm, finished"
    assert titles["rounds"] == "4 of 4"
    assert titles["accuracy"] == f"{log[-1]['test_accuracy']:.4g} after round 4"
    assert titles["checkpoint"].startswith("round 4, ")
    assert any(f" {PHASES[2]} " in line and "%" in line for line in said.out)
    assert "left" not in said.text
    assert "resume" not in said.text


def test_a_dead_run_says_how_to_resume(run):
    cut_log(run, 3)
    page = "".join("".join(shown(run)).split())  # a long path is folded
    assert f"{run}:fedhbm,notrunning" in page
    assert f"hpcflresume{run}" in page
    assert "3of4" in page


def test_a_live_run(run):
    """With the ranks that beat, the one that does not in their midst, and their load."""
    cut_log(run, 3)
    lines = (run / "log.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"busy_s": [1.0, 4.0], "imbalance": 1.6}
    shutil.rmtree(run / "checkpoints")  # whose log it was
    last.pop("crc32")
    (run / "log.jsonl").write_bytes("\n".join(lines[:-1]).encode() + b"\n" + log_of([last]))
    (run / "ranks" / "0123abcd").mkdir(parents=True)
    for rank in (0, 1):
        Heartbeats(run / "ranks", "0123abcd", rank).open(RankProgress(3, "training", 9))
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = shown(run)
    assert f"{run}:fedhbm,alive" in "".join("".join(said[:2]).split())  # a long path is folded
    assert " left" in said[1]
    ranks = [line for line in said if "training round 3, " in line]
    assert [line.split("%")[-2].split()[-1] for line in ranks] == ["25", "100"]
    assert any("slowest" in line and "1.60" in line for line in said)


def test_a_page_fits_the_terminal(run):
    for size in ((80, 24), (100, 50), (200, 30)):
        said = shown(run, *size)
        assert len(said) <= size[1]
        assert max(map(len, said)) <= size[0]


def test_a_narrow_terminal(run):
    assert shown(run, 12, 40)


def test_a_run_that_has_no_round_yet(run):
    shutil.rmtree(run / "checkpoints")
    (run / "log.jsonl").unlink()
    said = "\n".join(shown(run))
    assert "0 of 4" in said
    assert "nothing to draw yet" in said
    assert "the log does not tell" in said


def test_a_log_of_before(run):
    keep = ("round", "clients", "wall_s", "train_loss")
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    lines = [{key: entry[key] for key in keep if key in entry} for entry in log]
    shutil.rmtree(run / "checkpoints")  # whose log it was
    (run / "log.jsonl").write_bytes(log_of(lines))
    assert "the log does not tell" in "\n".join(shown(run))


def test_a_folder_of_runs(run, tmp_path):
    """A line each, the damaged one's too; a run that starts later appears."""
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    run.rename(sweep / "a")
    look = watch.page_of(sweep)
    console = Console(file=io.StringIO(), width=100, height=40, color_system=None)
    console.print(look(console))
    assert "1 finished" in console.file.getvalue()
    for name in ("b", "c"):
        (sweep / name).mkdir()
        (sweep / name / "job.yaml").write_bytes((sweep / "a" / "job.yaml").read_bytes())
    (sweep / "c" / "job.yaml").write_bytes(resolved("rounds: 1\n"))
    console.print(look(console))
    said = console.file.getvalue().splitlines()
    assert any(line.split()[:2] == ["b", "not"] and "0/4" in line for line in said)
    assert any(line.split()[:2] == ["c", "damaged"] for line in said)


def test_scores_on_validation_data(run, job, hpcfl, tmp_path):
    """In a plot beside that of the test set, and in a column of a folder of runs."""

    def frame(said):
        (line,) = [line for line in said if " accuracy " in line and " after " not in line]
        return line

    assert " validation " not in frame(shown(run))
    both = tmp_path / "both"
    assert hpcfl("run", job, "data.validation={share: 0.25}", "--out", both / "a").code == 0
    for size in ((80, 24), (100, 50)):
        said = shown(both / "a", *size)
        assert " validation " in frame(said)
        assert len(said) <= size[1]
        assert max(map(len, said)) <= size[0]
    log = [json.loads(line) for line in (both / "a/log.jsonl").read_text().splitlines()]
    newest = f"{log[-1]['validation_accuracy']:.4g}"
    said = shown(both / "a")
    assert any(line.split()[:2] == ["validation", newest] for line in said)
    run.rename(both / "b")
    (heads,), (a,), (b,) = (
        [line for line in shown(both) if line.split()[:1] == [name]] for name in ("run", "a", "b")
    )
    assert heads.split()[-2:] == ["score", "validation"]
    assert a.split()[-3:] == ["accuracy", f"{log[-1]['test_accuracy']:.4g}", newest]
    assert b.split()[-2] == "accuracy"
    shutil.rmtree(both / "a")
    (heads,) = [line for line in shown(both) if line.split()[:1] == ["run"]]
    assert heads.split()[-1] == "score"


def test_no_run(tmp_path, refused):
    assert "holds no run" in refused("watch", tmp_path)


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


def test_a_chart_by_hand():
    """A line from the lowest value at the left to the highest at the right."""
    assert text_plot([(0, 1.0), (2, 3.0), (4, 5.0)], 4, 15, 6, braille=False) == [
        "        5     *",
        "             * ",
        "            *  ",
        "           *   ",
        "        1 *    ",
        "          0   4",
    ]


def test_a_chart_of_dots():
    """Eight dots a cell, two columns of four."""
    lines = text_plot([(0, 0.0), (1, 1.0)], 1, 11, 2, braille=True)
    assert [ord(line[-1]) for line in lines] == [0x2800 | 0x40 | 0x04 | 0x10 | 0x08, ord("1")]


@pytest.mark.parametrize("values", [[], [float("nan")]])
def test_a_chart_of_nothing(values):
    assert text_plot(list(enumerate(values)), 5, 40, 5, braille=True) == ["nothing to draw yet"]


@pytest.mark.slow
@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_a_key_leaves_the_page(run, key):
    """On a terminal of its own: the alternate screen is entered and left, the exit code is 0."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] |= termios.NOFLSH  # or Ctrl-C throws away what is said right after it
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    command = [sys.executable, "-m", "hpcfl", "watch", run]
    # A session of its own, whose terminal this is: Ctrl-C becomes a signal.
    with not_ignored():
        child = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], stdin=theirs, stdout=theirs, stderr=theirs,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
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
                sent = bool(os.write(ours, key))
        assert child.wait(60) == 0, said
    finally:
        child.kill()
        os.close(ours)
    assert said.index(b"\x1b[?1049h") < said.index(b"4 of 4") < said.index(b"\x1b[?1049l")
    assert b"Traceback" not in said
