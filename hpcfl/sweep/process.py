"""Run a job as a process of its own, under mpirun where it has several ranks."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcfl.errors import DiskError, JobError
from hpcfl.io.atomic import write_errors
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.record import read_run, with_history
from hpcfl.sweep.resources import family

# Lines that say why a run ended: its own, and what MPICH's mpirun says of a rank that was killed.
_ERROR = re.compile(r"[\w.]*(Error|Stopped|Interrupt)\b.*")
_KILLED = re.compile(r"YOUR APPLICATION TERMINATED")
_SLURM = ("SLURM_", "PMI_", "PMIX_")
_LATEST_S = 10.0  # until a run is told to stop whose ranks cannot be seen, and told again
_TAIL = 8192  # bytes at the end of a log that hold its last whole line


class RunProcess:
    """A run that goes on in another process.

    Args:
        command: of hpcfl: "run" or "resume" and its arguments.
        folder: the run directory.
        rounds: how many rounds the job asks for.
        done: how many of them are in its checkpoint.
        ranks: more than one are started by mpirun.
        threads: of each rank.
        gpus: those the ranks may use, as CUDA_VISIBLE_DEVICES names them; empty: leave them be.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: RunDir,
        rounds: int,
        done: int,
        *,
        ranks: int,
        threads: int,
        gpus: Sequence[str],
    ) -> None:
        self.rounds, self.done, self._start = rounds, done, done
        self.taken = 0
        """Bytes of memory."""
        self.peak = 0
        """The most it was seen to take."""
        self.log = folder.root.with_name(f"{folder.root.name}.log")
        self._folder = folder
        self._history = _size(folder.history)
        self._began = time.monotonic()
        self._ranks, self._there = ranks, ranks == 1
        self._asked: float | None = None  # when, while it was not told
        self._command = [sys.executable, "-m", "hpcfl", *command]
        launcher = [mpirun(), "-n", str(ranks)] if ranks > 1 else []
        with write_errors(self.log), self.log.open("ab") as log:
            self._said = log.tell()
            self._process = subprocess.Popen(  # noqa: S603
                [*launcher, *self._command],
                env=environment(threads, gpus),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the sweep, which hands it on
            )

    @property
    def settled(self) -> bool:
        """Whether it got through a round, so that its memory is what a run needs."""
        return self.done > self._start

    def look(self) -> int | None:
        """Take note of its rounds and memory; the exit code once it is over."""
        alive = family(self._process.pid)
        self.taken = sum(process.memory for process in alive)
        self.peak = max(self.peak, self.taken)
        code = self._process.poll()
        begun = _size(self._folder.history) > self._history
        if begun:  # until then the log may hold rounds that the run is going to take away
            self.done = max(self.done, _newest_round(self._folder.log) or 0)
        ranks = sum(process.command == self._command for process in alive)
        self._there = self._there or begun or ranks >= self._ranks
        if self._asked is not None and code is None:
            self._tell(self._asked)
        return code

    def stop(self) -> None:
        """Ask it for a checkpoint and its end.

        A look tells it, once all of its ranks are there: MPICH's mpirun loses a signal that comes
        earlier.
        """
        self._asked = time.monotonic()

    def kill(self) -> None:
        """End it, and what it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def came_to(self) -> str:
        """What the finished run came to."""
        try:
            run = with_history(read_run(self._folder.root), self._folder.history_entries())
        except (JobError, DiskError) as e:  # its files cannot be told from: the sweep goes on
            return f"but {e}"
        accuracy, loss = run.last("test_accuracy"), run.last("test_loss")
        score = "" if loss is None else f", test loss {loss:.4g}"
        score = score if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
        score += ", diverged" if run.diverged else ""
        return f"{run.done} rounds{score}, {time.monotonic() - self._began:.0f} s"

    def last_words(self) -> str:
        """The line of its output that says best why it ended; empty where there is none."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._said)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
        errors = [line for line in lines if _ERROR.match(line)]
        killed = [line for line in lines if _KILLED.match(line)]
        return next(reversed(errors or killed or [line for line in lines if line]), "")

    def _tell(self, asked: float) -> None:
        late = time.monotonic() - asked > _LATEST_S
        if self._there or late:
            self._process.terminate()
            self._asked = None if self._there else time.monotonic()


def mpirun() -> str:
    """The mpirun of this environment, else the system's.

    Raises:
        JobError: there is none.
    """
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which("mpirun", path=folders)
    if found is None:
        raise JobError("ranks: no mpirun beside this Python nor on PATH; install one, or say 1")
    return found


def environment(threads: int, gpus: Sequence[str]) -> dict[str, str]:
    """This process's environment, for a run that shares the machine with others.

    Args:
        threads: of each rank.
        gpus: as CUDA_VISIBLE_DEVICES names them; empty: leave them be.
    """
    environment = {
        # Slurm's words are of the sweep's own task: mpirun would ask Slurm for tasks of its own.
        **{key: value for key, value in os.environ.items() if not key.startswith(_SLURM)},
        "OMP_NUM_THREADS": str(threads),
        # Each Open MPI would bind its first rank to the first core, whoever is there already.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "TTY_COMPATIBLE": "0",  # its output is a file: lines, no bars
        "TTY_INTERACTIVE": "0",
    }
    return environment | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})


def _size(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def _newest_round(log: Path) -> int | None:
    """The round of the last whole line of log.jsonl; None where none can be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return int(json.loads(file.read().split(b"\n")[-2])["round"])
    except (OSError, ValueError, LookupError, TypeError):  # it is for show: the run judges its log
        return None
