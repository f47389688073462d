"""Submit a sweep to Slurm as an array."""

import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.sweep_log import SweepLog
from hpcfl.sweep.grid import Sweep
from hpcfl.sweep.pending import PendingRun, edited_notes, pending_runs
from hpcfl.sweep.run_sweep import prepare

SCRIPT = Path("slurm/array.sh")


@dataclass(frozen=True)
class SlurmArray:
    """The array that is submitted by sbatch."""

    sweep: Sweep
    overrides: Sequence[str]
    """The command line's, which every task reads the sweep with."""
    root: Path
    """The directory of its runs."""
    parallel: int
    """How many points a task runs at once: task i those from i * parallel on."""
    options: str
    """Options of sbatch, as a shell would read them."""

    def command_line(self) -> str:
        """The command that `submit` would run."""
        runs = pending_runs(self.sweep, self.root)
        tasks = self._tasks(runs)
        if not tasks:
            return self._nothing_to_do(runs)
        words = [f"{key}={value}" for key, value in self._environment.items()]
        return shlex.join([*words, *self._command(tasks)])

    def submit(self) -> str:
        """Submit the array; return a line for the user.

        Raises:
            JobError: nothing was submitted: a run is alive, the script is not here, or sbatch
                refuses.
        """
        if not SCRIPT.is_file():
            raise JobError(
                f"{SCRIPT}: is not here; submit from the directory of hpcfl's "
                "sources, or from one that `hpcfl init` has made"
            )
        with RunDir(self.root) as folder:
            runs = prepare(self.sweep, folder)
            tasks = self._tasks(runs)
            if not tasks:
                return self._nothing_to_do(runs)
            job = self._sbatch(tasks)
            left = sum(run.action != "skip" for run in runs)
            log = SweepLog(self.root)
            log.write(
                "submitted", "sweep", f"Slurm job {job}: {left} runs, {len(runs) - left} finished "
                f"before, {self.parallel} a task",
            )  # fmt: skip
            for note in edited_notes(runs):
                log.write("note", "sweep", note)
        return f"how far they are: hpcfl status {self.root}"

    @property
    def _environment(self) -> dict[str, str]:
        return {"HPCFL_OUT": str(self.root), "HPCFL_PACK": str(self.parallel)}

    def _nothing_to_do(self, runs: Sequence[PendingRun]) -> str:
        line = f"{self.root}: all {len(runs)} runs are finished, nothing to submit"
        return "\n".join([line, *edited_notes(runs)])

    def _tasks(self, runs: Sequence[PendingRun]) -> list[int]:
        """The tasks that have a run to start or to resume."""
        left = {at // self.parallel for at, run in enumerate(runs) if run.action != "skip"}
        return sorted(left)

    def _command(self, tasks: Sequence[int]) -> list[str]:
        options = [f"--array={ranges(tasks)}", f"--job-name={self.sweep.name}"]
        script = [str(SCRIPT), str(self.sweep.path), *self.overrides]
        try:
            return ["sbatch", *options, *shlex.split(self.options), *script]
        except ValueError as e:
            raise JobError(f"--sbatch: found {self.options!r}: {e}") from e

    def _sbatch(self, tasks: Sequence[int]) -> str:
        """The id of the job that was submitted."""
        name, *words = self._command(tasks)
        try:
            made = subprocess.run(  # noqa: S603
                [name, "--parsable", *words],
                env={**os.environ, **self._environment},
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as e:
            raise JobError(f"sbatch: {e.strerror}; submit where Slurm is installed") from e
        if made.returncode:
            raise JobError(made.stderr.strip())
        return made.stdout.strip().partition(";")[0]  # the cluster's name may follow


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as sbatch takes them: "0-2,5"."""
    found = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(found)
