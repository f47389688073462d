"""docs/extending.md: its files are written out, and its commands say what it prints."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.harness import environment, find_mpirun

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()
FILES = re.findall(r"^```(?:python|yaml)\n(# (\S+)\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SESSIONS = re.findall(r"^```\n(\$ .*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands():
    """(command, the lines that follow it) of all sessions, in order."""
    for session in SESSIONS:
        for part in session.split("$ ")[1:]:
            command, *said = part.splitlines()
            yield command, said


def words(command):
    """What a shell would start, of this Python and this checkout."""
    hpcfl = [sys.executable, "-m", "hpcfl"]
    known = {"hpcfl": hpcfl, "python": [sys.executable], "mpirun": [find_mpirun()]}
    return [new for word in shlex.split(command) for new in known.get(word, [word])]


def stands_in(line, text):
    """Whether a printed line is there, with anything for its dots."""
    return re.search(".*".join(map(re.escape, line.split("..."))), text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("extending")
    for text, name in FILES:
        (made / name).write_text(text)
    return made


def test_the_page_runs_as_printed(folder):
    path = os.pathsep.join([str(folder), str(ROOT)])
    given = list(commands())
    assert given.pop(0) == ("export PYTHONPATH=.", [])
    assert len(given) == 17
    for command, said in given:
        done = subprocess.run(
            words(command), cwd=folder, env=environment(PYTHONPATH=path),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        refused = any("Error: " in line for line in said)
        assert done.returncode == (2 if refused else 0), (command, done.stderr)
        for line in said:
            assert stands_in(line, done.stdout + done.stderr), (command, line, done)


def test_the_examples_learn(folder):
    """After the page was played."""
    for run in ("fedvarp", "synthetic", "perceptron"):
        log = (folder / "runs" / run / "log.jsonl").read_text().splitlines()
        scores = re.findall(r'"test_accuracy": ([\d.]+)', "\n".join(log))
        assert float(scores[-1]) > 0.3, run
