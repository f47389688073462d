"""A life of a run in a process forked from one that has torch: soon there, and free to crash."""

import multiprocessing
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from hpcfl.bench.chaos.run_outcome import Outcome, committed, outcome
from hpcfl.bench.chaos.settings import JOB
from hpcfl.cli import main as cli
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import Line, RunLog

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "deny", "forked", "warm"])
ROUNDS = 14
LINE = re.compile(r"\w+Error: \S.*")


class Said(NamedTuple):
    """How a life ended, and what it said."""

    code: int
    text: str

    @property
    def line(self) -> str:
        """The one line that says why it failed; anything else is a defect."""
        assert self.code in (1, 2, 74), self
        assert "Traceback" not in self.text, self.text
        lines = [line for line in self.text.splitlines() if LINE.match(line)]
        assert len(lines) == 1, self.text
        return lines[0]


def write(folder: Path, name: str = "job", **changes) -> Path:
    """The job of these tests."""
    job = {**JOB, "algorithm": {"name": "scaffold"}, "checkpoint": {"every": 2}, "rounds": ROUNDS}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**job, **changes}))
    return path


def live(*arguments: object, prepare: Callable[[], None] | None = None) -> Said:
    """``hpcfl ARGUMENTS`` to its end.

    Args:
        arguments: of hpcfl.
        prepare: called in its process before it begins.
    """
    ours, theirs = socket.socketpair()
    words = [str(argument) for argument in arguments]
    process = CONTEXT.Process(target=_live, args=(words, theirs, prepare))
    process.start()
    theirs.close()
    with ours:
        text = b"".join(iter(lambda: ours.recv(65536), b"")).decode()
    process.join()
    return Said(process.exitcode, text)


def _live(
    arguments: list[str], connection: socket.socket, prepare: Callable[[], None] | None
) -> None:
    # A socket takes what is said, so that no fault of files keeps it from saying what is wrong.
    sys.stdout = sys.stderr = connection.makefile("w", buffering=1)
    if prepare:
        prepare()
    sys.exit(cli.main(arguments))


def go_on(folder: RunDir, job: Path) -> Outcome:
    """What the run leaves once nothing disturbs it any more."""
    anew = ["run", job, "--out", folder.root]
    words = anew if committed(folder) < 0 else ["resume", folder.root]
    said = live(*words)
    assert said.code == 0, said.text
    return outcome(folder)


def killed(run: Path, job: Path, rounds: int) -> RunDir:
    """A run that died after so many rounds."""
    said = live("run", job, "--out", run, prepare=partial(_die_after, rounds))
    assert said.code == -signal.SIGKILL, said.text
    return RunDir(run)


def _die_after(rounds: int) -> None:
    """From now on a line of the log is the last thing that this process does."""
    whole = RunLog.write

    def written(log: RunLog, record: Line) -> None:
        whole(log, record)
        if record["round"] == rounds:
            os.kill(os.getpid(), signal.SIGKILL)

    RunLog.write = written
