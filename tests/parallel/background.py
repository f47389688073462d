"""A run of the command line that a test disturbs while it is going on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from tests.parallel.harness import ROOT, environment, find_mpirun, mpirun

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
    ranks: int, *args: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``mpirun -n RANKS python -m hpcfl ARGS`` to its end."""
    return mpirun(ranks, "-m", "hpcfl", *args, env=env, timeout=PATIENCE_S)


class Going:
    """``mpirun -n RANKS python -m hpcfl ARGS`` in the background; a context manager."""

    def __init__(self, ranks: int, *args: str | Path, env: Mapping[str, str] | None = None):
        command = [find_mpirun(), "-n", str(ranks), sys.executable, "-m", "hpcfl", *map(str, args)]
        self._token = f"HPCFL_TEST_RUN={uuid4().hex}"  # by which its processes are known
        name, _, value = self._token.partition("=")
        self._process = subprocess.Popen(
            command,
            env=environment(**{**(env or {}), name: value}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Going":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        while left := self.ranks():  # one of them may hold the run's lock until it is gone
            for pid in left:
                kill(pid)
            time.sleep(0.01)
        self._process.communicate()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ranks(self) -> list[int]:
        """The process ids of the ranks, rank 0 first."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "environ").read_bytes().split(b"\0")
                command = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            rank = [w for w in words if w.startswith((b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK="))]
            if rank and self._token.encode() in words and b"hpcfl" in command:
                found[int(rank[0].partition(b"=")[2])] = int(path.name)
        return [found[rank] for rank in sorted(found)]

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
        return self._process.returncode, out, err


def rounds(run: Path) -> int:
    """How many lines the log has so far."""
    log = run / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0
