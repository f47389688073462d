"""Start a run as a process of its own, under mpirun if it has several ranks, and poll it."""

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
from hpcfl.io import regular
from hpcfl.io.atomic import write_errors
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.record import read_run, with_history
from hpcfl.sweep.resources import process_tree

# Lines with the reason why a run ended: its own, and MPICH's mpirun's about a killed rank.
_ERROR = re.compile(r"[\w.]*(Error|Stopped|Interrupt)\b.*")
_KILLED = re.compile(r"YOUR APPLICATION TERMINATED")
_SLURM = ("SLURM_", "PMI_", "PMIX_")
# Seconds until a stop is sent to a run whose ranks cannot be seen, and until it is sent again.
_RESEND_S = 10.0
_TAIL = 8192  # bytes at the end of a log that hold its last whole line


class RunProcess:
    """A run in another process.

    Args:
        command: of hpcfl: "run" or "resume" and its arguments.
        folder: the run directory.
        rounds: the number of rounds of the job.
        done: how many of them are in its checkpoint.
        ranks: more than one are started by mpirun.
        threads: of each rank.
        gpus: those the ranks may use, as CUDA_VISIBLE_DEVICES names them; empty: all of them.
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
        self.memory = 0
        """Resident bytes of all its processes at the last poll."""
        self.peak_memory = 0
        """The most of these at any poll."""
        self.log = folder.root.with_name(f"{folder.root.name}.log")
        self._folder = folder
        self._history = _size(folder.history)
        self._began = time.monotonic()
        self._ranks, self._ranks_started = ranks, ranks == 1
        self._stop_requested_s: float | None = None  # until the signal was sent
        self._command = [sys.executable, "-m", "hpcfl", *command]
        launcher = [mpirun(), "-n", str(ranks)] if ranks > 1 else []
        with write_errors(self.log), regular.open_append(self.log) as log:
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

    @property
    def measured(self) -> bool:
        """Whether it has completed a round, so that ``peak_memory`` is what a run needs."""
        return self.done > self._start

    def poll(self) -> int | None:
        """Update its rounds and memory; return the exit code once it has ended."""
        alive = process_tree(self._process.pid)
        self.memory = sum(process.memory for process in alive)
        self.peak_memory = max(self.peak_memory, self.memory)
        code = self._process.poll()
        started = _size(self._folder.history) > self._history
        if started:  # before, the log may hold rounds that the resume will cut off
            self.done = max(self.done, _newest_round(self._folder.log) or 0)
        ranks = sum(process.command == self._command for process in alive)
        self._ranks_started = self._ranks_started or started or ranks >= self._ranks
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
            run = with_history(read_run(self._folder.root), self._folder.history_entries())
        except (JobError, DiskError) as e:  # a damaged file of this run does not end the sweep
            return f"but {e}"
        accuracy, loss = run.last("test_accuracy"), run.last("test_loss")
        score = "" if loss is None else f", test loss {loss:.4g}"
        score = score if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
        score += ", diverged" if run.diverged else ""
        return f"{run.done} rounds{score}, {time.monotonic() - self._began:.0f} s"

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
        if self._ranks_started or late:
            self._process.terminate()
            self._stop_requested_s = None if self._ranks_started else time.monotonic()


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


def _size(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def _newest_round(log: Path) -> int | None:
    """The round of the last whole line of log.jsonl; None where none can be read."""
    try:
        with regular.open_binary(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return int(json.loads(file.read().split(b"\n")[-2])["round"])
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
    ):  # only shown: the run itself checks its log
        return None
