"""The run that these tests disturb."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import yaml

from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import Line, RunLog
from hpcfl.tools.selftest import JOB, RunBits, committed, outcome
from tests.forked import Ended, finish

ROUNDS = 14
LINE = re.compile(r"\w+Error: \S.*")


def write(folder: Path, name: str = "job", **changes) -> Path:
    """The job of these tests."""
    job = {**JOB, "algorithm": {"name": "scaffold"}, "checkpoint": {"every": 2}, "rounds": ROUNDS}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**job, **changes}))
    return path


def error_line(ended: Ended) -> str:
    """The one line that says why a run failed; anything else is a defect."""
    assert ended.returncode in (1, 2, 74), ended
    assert "Traceback" not in ended.stderr, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if LINE.match(line)]
    assert len(lines) == 1, ended.stderr
    return lines[0]


def complete(folder: RunDir, job: Path) -> RunBits:
    """Resume the run, or start it where it has no checkpoint; its outcome."""
    fresh = ["run", job, "--out", folder.root]
    ended = finish(1, *(fresh if committed(folder) < 0 else ["resume", folder.root]))
    assert ended.returncode == 0, ended.stderr
    return outcome(folder)


def killed(run: Path, rounds: int, *command: object) -> RunDir:
    """The run of a command, such as ``"run", job``, that was killed after so many rounds."""
    ended = finish(1, *command, "--out", run, prepare=partial(die_after, rounds))
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return RunDir(run)


def die_after(rounds: int) -> None:
    """Kill this process as soon as the log has the line of that round."""
    write_line = RunLog.write

    def write_and_die(log: RunLog, record: Line) -> None:
        write_line(log, record)
        if record["round"] == rounds:
            os.kill(os.getpid(), signal.SIGKILL)

    RunLog.write = write_and_die
