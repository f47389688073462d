"""Start a run as a process of its own, under mpirun if it has several ranks, and poll it."""

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
from hpcfl.io import regular
from hpcfl.io.atomic import write_errors
from hpcfl.io.memory import PROC
from hpcfl.io.words import counted
from hpcfl.runs.layout import RunDir
from hpcfl.runs.record import read_run

# Lines with the reason why a run ended: its own, and MPICH's mpirun's about a killed rank.
_ERROR = re.compile(r"[\w.]*(Error|Stopped|Interrupt)\b.*")
_KILLED = re.compile(r"YOUR APPLICATION TERMINATED")
_SLURM = ("SLURM_", "PMI_", "PMIX_")
OUTPUT = b"# The output of a run, which a sweep of hpcfl started\n"
"""The first line of the file."""
# Seconds until a stop is sent to a run whose ranks cannot be seen, and until it is sent again.
_RESEND_S = 10.0


class RunProcess:
    """A run in another process.

    Args:
        command: of hpcfl: "run" or "resume" and its arguments.
        folder: the run directory.
        ranks: more than one are started by mpirun.
        threads: of each rank.
        gpus: those the ranks may use, as CUDA_VISIBLE_DEVICES names them; empty: all of them.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: RunDir,
        *,
        ranks: int,
        threads: int,
        gpus: Sequence[str],
    ) -> None:
        self.log = folder.root.with_name(f"{folder.root.name}.log")
        self._folder = folder
        self._history = _size(folder.history)
        self._began = time.monotonic()
        self._ranks = ranks
        self._stop_requested_s: float | None = None  # until the signal was sent
        self._command = [sys.executable, "-m", "hpcfl", *command]
        launcher = [mpirun(), "-n", str(ranks)] if ranks > 1 else []
        with write_errors(self.log), regular.open_append(self.log) as log:
            if not log.tell():
                log.write(OUTPUT)
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603
                [*launcher, *self._command],
                env=environment(threads, gpus),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C then reaches only the sweep, which stops its runs with a checkpoint.
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Send the signal of a requested stop when it is due; return the exit code once ended."""
        code = self._process.poll()
        if self._stop_requested_s is not None and code is None:
            self._send_stop(self._stop_requested_s)
        return code

    def stop(self) -> None:
        """Have it write a checkpoint and end.

        The signal is sent by a later ``poll``, once all ranks have started: MPICH's mpirun loses a
        signal that comes earlier.
        """
        self._stop_requested_s = time.monotonic()

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def result(self) -> str:
        """The rounds, the score and the duration of the finished run, as a text."""
        try:
            run = read_run(self._folder.root)
        except (JobError, DiskError) as e:  # a damaged file of this run does not end the sweep
            return f"but {e}"
        accuracy, loss = (run.last(run.score_key(name)) for name in ("accuracy", "loss"))
        score = "" if loss is None else f", test loss {loss:.4g}"
        score = score if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
        score += "" if run.own_models is None else f" ({run.score_of})"
        score += ", diverged" if run.diverged else ""
        return f"{counted(run.done, 'round')}{score}, {time.monotonic() - self._began:.0f} s"

    def last_message(self) -> str:
        """The last error in its output, else the last line; empty if it printed nothing."""
        if not self.log.exists():
            return ""
        with regular.open_binary(self.log) as log:
            log.seek(self._log_start)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
        errors = [line for line in lines if _ERROR.match(line)]
        killed = [line for line in lines if _KILLED.match(line)]
        return next(reversed(errors or killed or [line for line in lines if line]), "")

    def _send_stop(self, since: float) -> None:
        late = time.monotonic() - since > _RESEND_S
        started = self._have_ranks_started()
        if started or late:
            self._process.terminate()
            self._stop_requested_s = None if started else time.monotonic()

    def _have_ranks_started(self) -> bool:
        if self._ranks == 1 or _size(self._folder.history) > self._history:
            return True
        return command_lines(self._process.pid).count(self._command) >= self._ranks


def mpirun() -> str:
    """The mpirun of this environment, else the system's.

    Raises:
        JobError: there is none.
    """
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which("mpirun", path=folders)
    if found is None:
        raise JobError(
            "ranks: no mpirun next to this Python nor on PATH; install one, or set ranks to 1"
        )
    return found


def environment(threads: int, gpus: Sequence[str]) -> dict[str, str]:
    """This process's environment, for a run that shares the machine with others.

    Args:
        threads: of each rank.
        gpus: as CUDA_VISIBLE_DEVICES names them; empty: all of them.
    """
    environment = {
        # These variables describe the sweep's own task: with them mpirun would ask Slurm for tasks.
        **{key: value for key, value in os.environ.items() if not key.startswith(_SLURM)},
        "OMP_NUM_THREADS": str(threads),
        # Otherwise the Open MPI of every run would bind its first rank to the same first core.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "TTY_COMPATIBLE": "0",  # its output is a file: lines, no bars
        "TTY_INTERACTIVE": "0",
    }
    return environment | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})


def command_lines(process: int) -> list[list[str]]:
    """Those of a process and of all that it started; empty where /proc does not exist."""
    root = PROC / str(process)
    try:
        command = os.fsdecode((root / "cmdline").read_bytes()).split("\0")[:-1]
        children = (root / f"task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [command, *(line for child in children for line in command_lines(int(child)))]


def _size(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0
