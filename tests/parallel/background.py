"""A run of the command line that a test disturbs while it is going on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.forked import program
from tests.parallel.harness import ROOT, environment, find_mpirun, mpirun
from tests.signals import not_ignored

PATIENCE_S = 300.0  # only against a hang

DIGITS: Mapping[str, Any] = {
    "task": "digits",
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.1}, "clients": 9},
    "cohort": {"kind": "bernoulli", "p": 0.4},
    "algorithm": {"name": "fedhbm"},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
    "rounds": 60,
    "checkpoint": {"every": 4},
    "device": "cpu",
    "seed": 2,
}


def write(folder: Path, name: str = "job", **changes: Any) -> Path:
    """A job of DIGITS, with ``changes``."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**DIGITS, **changes}))
    return path


def held(rounds: int, go: Path = Path("/nowhere")) -> dict[str, str]:
    """An environment in which a run waits after so many rounds, see held/sitecustomize.py.

    Args:
        rounds: after how many.
        go: a file that lets it go on, as a signal does.
    """
    return {**changed("held"), "HPCFL_TEST_HOLD": str(rounds), "HPCFL_TEST_GO": str(go)}


def changed(name: str) -> dict[str, str]:
    """An environment in which NAME/sitecustomize.py changes what hpcfl does."""
    return {"PYTHONPATH": f"{Path(__file__).with_name(name)}{os.pathsep}{ROOT}"}


def kill(pid: int) -> None:
    """kill -9, of a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def finish_mpi(
    ranks: int, *args: str | Path, env: Mapping[str, str] | None = None, anew: bool = False
) -> subprocess.CompletedProcess[str]:
    """``mpirun -n RANKS python -m hpcfl ARGS`` to its end; ``anew`` as ``mpirun`` takes it."""
    return mpirun(ranks, "-m", "hpcfl", *args, env=env, timeout=PATIENCE_S, anew=anew)


class Going:
    """``mpirun -n RANKS python -m hpcfl ARGS`` in the background; a context manager."""

    def __init__(self, ranks: int, *args: str | Path, env: Mapping[str, str] | None = None):
        self._command = [find_mpirun(), "-n", str(ranks)]
        self._words = ["-m", "hpcfl", *map(str, args)]
        self._env = environment(**(env or {}))

    def __enter__(self) -> "Going":
        with ExitStack() as stack:
            self._program = stack.enter_context(program())
            with not_ignored():
                self._process = subprocess.Popen(
                    [*self._command, *self._program.command, *self._words],
                    env=self._env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            stack.callback(self._process.communicate)
            stack.callback(self._process.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ranks(self) -> list[int]:
        """The process ids of the ranks that are alive, rank 0 first."""
        alive = dict(self._program.alive)
        return sorted(alive, key=alive.__getitem__)

    def wait_until(self, ready: Callable[[], Any]) -> None:
        """Until ``ready``; a run that ends before is an error."""
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            assert self.alive, self._process.communicate()
            assert time.monotonic() < deadline, "the run does not get so far"
            time.sleep(0.002)

    def signal(self, number: int) -> None:
        """To mpirun, as a person or a batch system would."""
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error, once mpirun has ended by itself."""
        out, err = self._process.communicate(timeout=PATIENCE_S)
        while self.ranks():  # they are killed a moment after what mpirun knows of them
            time.sleep(0.01)
        return self._process.returncode, out, err


def rounds(run: Path) -> int:
    """How many lines the log has so far."""
    log = run / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0
