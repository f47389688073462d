"""A rank that is stopped, in any phase: every other rank ends, with a line that says why.

Nothing on the way out may wait for the stopped one: no word in the store that it holds, no barrier,
no lock.  Nobody ends the ranks: torchrun itself waits for the stopped one for 30 s.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path

import pytest

from tests.forked import finish, program, torchrun
from tests.long_form import LONG, long_form
from tests.parallel.background import changed, write
from tests.parallel.harness import environment

TIMEOUT_S = 8.0
LIMIT_S = TIMEOUT_S + 30.0
PATIENCE_S = 300.0  # only against a hang
PHASES = (
    *("connecting", "meeting", "sharing", "grouping", "agreeing", "fetching", "loading"),
    *("building", "beginning", "heartbeats", "verifying"),  # before round 1
    *("training", "evaluating", "saving", "committing", "ending"),
)
SAMPLE = [("own", 0, "agreeing"), ("own", 1, "grouping"), ("torchrun", 0, "loading")]
ALL = [*product(("own", "torchrun"), (0, 1), PHASES)]
AT_ONCE = 3


class Case:
    """Two ranks, one of which stops itself; a context manager."""

    def __init__(self, folder, launcher, victim, phase):
        self.victim, self.other, self._launcher = victim, 1 - victim, launcher
        self._ids, self._said = folder / "ids", folder / "said"
        self._ids.mkdir(parents=True)
        comm = {"backend": "gloo", "timeout_s": TIMEOUT_S}
        job = write(folder, comm=comm, rounds=4, evaluate={"every": 2})
        self._words = ["-m", "hpcfl", "run", str(job), "--out", str(folder / "run")]
        if phase == "verifying":
            done = finish(1, *self._words[2:])
            assert done.returncode == 0, done.stderr
            self._words = ["-m", "hpcfl", "resume", str(folder / "run"), "rounds=8"]
        self._env = changed("stopped") | {"HPCFL_TEST_STOP": f"{victim} {phase} {self._ids}"}

    def __enter__(self):
        with ExitStack() as stack:
            # The long form also has the end of an interpreter that nobody forked.
            python = [sys.executable] if LONG else stack.enter_context(program()).command
            command = [*python, *self._words]
            launches = torchrun(2)
            if self._launcher == "torchrun":
                agent = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
                command, launches = [sys.executable, *agent, "--no-python", *command], [{}]
            with self._said.open("w") as said:
                for variables in launches:
                    process = subprocess.Popen(
                        command, env=environment(**self._env, **variables), stdout=said, stderr=said
                    )
                    stack.callback(process.wait)
                    stack.callback(process.kill)
            stack.callback(self._kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _kill(self):
        for path in self._ids.iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)

    @property
    def said(self):
        return self._said.read_text()

    def state(self, rank):
        """As Linux has it: T is stopped; "" once it has ended, and before it began."""
        path = self._ids / str(rank)
        with suppress(FileNotFoundError, ValueError):
            found = Path(f"/proc/{int(path.read_text())}/stat").read_text()
            state = found.rpartition(")")[2].split()[0]
            return "" if state in "ZX" else state
        return ""


def wait_until(ready, limit_s):
    """Whether ``ready`` within the limit."""
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    "cases",
    [
        SAMPLE,
        *(pytest.param(ALL[k : k + AT_ONCE], marks=long_form) for k in range(0, len(ALL), AT_ONCE)),
    ],
    ids=lambda cases: " ".join(f"{launcher}-{rank}-{phase}" for launcher, rank, phase in cases),
)
def test_the_others_end(cases, tmp_path):
    with ExitStack() as stack:
        going = [
            stack.enter_context(Case(tmp_path / str(k), *case)) for k, case in enumerate(cases)
        ]
        for case in going:
            assert wait_until(lambda c=case: c.state(c.victim) == "T", PATIENCE_S), case.said
        for case in going:
            assert wait_until(lambda c=case: not c.state(c.other), LIMIT_S), case.said
            lines = [line for line in case.said.splitlines() if "RankError: " in line]
            assert len(lines) == 1, case.said
            assert "Traceback" not in case.said
