"""Whatever names and histories hold, a terminal finds nothing in the output to obey."""

import re

import pytest

from hpcfl.errors import one_line, printable
from hpcfl.tools.report import plain
from hpcfl.tools.report.table import Report, Table
from tests.rundirs import log_of, starts

NAME = (
    "ru\x1b[31mn\a\x9bx\r\u202ey"  # colours, a bell, an escape of one byte, overwriting, reversal
)


def require_printable(done):
    for line in (*done.err, *done.text.split("\n")):
        assert line.isprintable(), line


def test_a_text():
    assert printable("a\nb\tc\r\n\x1b[0m\udcff") == "a\nb c \n\\x1b[0m\\udcff"
    assert one_line("a\nb\tc\x1b\n") == "a b c\\x1b"
    assert printable("Müller \N{SNOWMAN}") == "Müller \N{SNOWMAN}"


@pytest.fixture
def run(job, tmp_path, hpcfl):
    """A run whose directory has an odd name, and its history odd strings."""
    out = tmp_path / "runs" / NAME
    done = hpcfl("run", job, "--out", out)
    require_printable(done)
    assert done.code == 0
    odd = {"hpcfl": "1\x1b[2J\n2", "time": "now\x1b]0;title\a"}
    (out / "history.jsonl").write_bytes(log_of([{**start, **odd} for start in starts(out)]))
    return out


@pytest.mark.parametrize(
    "command",
    [
        "status DIR",
        "status DIR/..",
        "report DIR",
        "report DIR --layout paper",
        "report DIR --format csv",
        "report DIR --format latex",
        "report DIR --format markdown",
        "report DIR --plot DIR.png",
        "resume DIR rounds=5",
        "resume DIR rounds=5 --out DIR-copy",
        "resume DIR local.lr=0.5 --round 2 --out DIR-branch",
        "run JOB --out DIR",
        "plan JOB",
        "data show JOB --plot DIR.png",
        "cite DIR",
    ],
)
def test_a_command(run, job, hpcfl, command):
    words = [word.replace("DIR", str(run)).replace("JOB", str(job)) for word in command.split()]
    require_printable(hpcfl(*words))


def test_a_path_is_exact_for_a_script_and_printable_on_a_terminal(run, hpcfl, monkeypatch):
    weights = f"{run}.safetensors"
    words = ("export", run, "--state-dict", weights)
    assert hpcfl(*words).text == f"{weights}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert hpcfl(*words).text == f"{printable(weights)}\n"


def test_bold_cells_keep_their_escape_codes_and_others_lose_theirs():
    table = Table(["run", "loss"], [[NAME, "0.5"]], [f"of {NAME}"], best=frozenset({(0, 1)}))
    text = plain(Report([table], [{}]), styled=True)
    assert "\x1b[1m" in text
    assert re.sub("\x1b\\[[01]m", "", text).replace("\n", "").isprintable()
    assert text.count(printable(NAME)) == 2


@pytest.mark.usefixtures("forked_python")
def test_sweeps_and_their_progress(job, tmp_path, hpcfl):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("job: job.yaml\nset: {rounds: 1}\ngrid: {seed: [0, 1]}\n")
    out = tmp_path / NAME
    for more in (["--dry-run"], ["--parallel", 1], ["--submit", "--dry-run"]):
        require_printable(hpcfl("sweep", sweep, "--out", out, *more))
    require_printable(hpcfl("status", out))
