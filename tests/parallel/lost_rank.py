"""Two ranks, one of which is lost in a phase of the run: it stops itself, or is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.forked import program, python, torchrun
from tests.long_form import LONG
from tests.parallel.background import changed, write
from tests.parallel.harness import environment

TIMEOUT_S = 8.0
LIMIT_S = TIMEOUT_S + 30.0
PATIENCE_S = 300.0  # only against a hang


class LostRank:
    """Two ranks of a run; a context manager.

    Args:
        folder: gets the job, and the run in ``folder/run``.
        launcher: "own" or "torchrun".
        victim: the rank that is lost.
        phase: where, see ``stopped/sitecustomize.py``.
        fault: "STOP" or "KILL", a signal.
        under: the words that start hpcfl, in place of "-m hpcfl".
        changes: to the job, see ``background.write``.
    """

    def __init__(
        self,
        folder: Path,
        launcher: str,
        victim: int,
        phase: str,
        fault: str = "STOP",
        under: Sequence[str] = ("-m", "hpcfl"),
        **changes: Any,
    ) -> None:
        self.victim, self.other, self._launcher = victim, 1 - victim, launcher
        self._fault = fault
        self._ids, self._said = folder / "ids", folder / "said"
        self._ids.mkdir(parents=True)
        self.run = folder / "run"
        comm = {"backend": changes.pop("backend", "gloo"), "timeout_s": TIMEOUT_S}
        own = {"comm": comm, "rounds": 4, "evaluate": {"every": 2}} | changes
        job = write(folder, **own)
        self._words = [*under, "run", str(job), "--out", str(self.run)]
        if phase == "verifying":
            done = python(1, *under, "run", job, "comm.backend=auto", "--out", self.run)
            assert done.returncode == 0, done.stderr
            again = ("rounds=8", f"comm.backend={comm['backend']}")
            self._words = [*under, "resume", str(self.run), *again]
        self._env = changed("stopped") | {
            "HPCFL_TEST_STOP": f"{victim} {phase} {fault} {self._ids}"
        }

    def __enter__(self) -> "LostRank":
        with ExitStack() as stack:
            # The long form also has the end of an interpreter that nobody forked.
            start = [sys.executable] if LONG else stack.enter_context(program()).command
            command, launches = [*start, *self._words], torchrun(2)
            if self._launcher == "torchrun":
                agent = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
                command, launches = [sys.executable, *agent, "--no-python", *command], [{}]
            self.processes = []
            with self._said.open("w") as said:
                for variables in launches:
                    process = subprocess.Popen(
                        command, env=environment(**self._env, **variables), stdout=said, stderr=said
                    )
                    self.processes.append(process)
                    stack.callback(process.wait)
                    stack.callback(process.kill)
            stack.callback(self._kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kill(self) -> None:
        for path in self._ids.iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def error(self) -> str:
        """The one line that tells why the run ended."""
        lines = [line for line in self.said.splitlines() if "RankError: " in line]
        assert len(lines) == 1, self.said
        assert "Traceback" not in self.said, self.said
        return lines[0]

    def wait_until_lost(self) -> None:
        """Until the victim has stopped or is dead."""
        if self._fault == "KILL":
            assert wait_until((self._ids / str(self.victim)).exists, PATIENCE_S), self.said
        gone = {"STOP": "T", "KILL": ""}[self._fault]
        assert wait_until(lambda: self.state(self.victim) == gone, PATIENCE_S), self.said

    def wait_until_ended(self) -> None:
        """Until the other rank has ended, which takes a limited time."""
        assert wait_until(lambda: not self.state(self.other), LIMIT_S), self.said

    def state(self, rank: int) -> str:
        """As Linux has it: T is stopped; "" once it has ended, and before it began."""
        path = self._ids / str(rank)
        with suppress(FileNotFoundError, ValueError):
            found = Path(f"/proc/{int(path.read_text())}/stat").read_text()
            state = found.rpartition(")")[2].split()[0]
            return "" if state in "ZX" else state
        return ""


def wait_until(ready: Callable[[], object], limit_s: float) -> bool:
    """Whether ``ready`` within the limit."""
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
