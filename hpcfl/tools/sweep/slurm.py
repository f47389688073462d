"""Submit a sweep to Slurm as an array."""

import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.io.threads import map_in_threads
from hpcfl.runs.layout import RunDir
from hpcfl.runs.sweep_log import SweepLog
from hpcfl.tools.sweep.grid import Point, Sweep
from hpcfl.tools.sweep.pending import PendingRun, pending_runs
from hpcfl.tools.sweep.run_sweep import prepare

SCRIPT = Path("slurm/array.sh")


@dataclass(frozen=True)
class SlurmArray:
    """The array that is submitted by sbatch: all tasks of which no run is alive and one is left."""

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
        left = self._left(pending_runs(self._free(), self.root))
        if not left:
            return self._nothing_to_do
        # With a quote before its "=" bash takes an assignment for a command.
        words = [f"{key}={shlex.quote(value)}" for key, value in self._environment.items()]
        return " ".join([*words, shlex.join(["sbatch", *self._words(left)])])

    def submit(self) -> str:
        """Submit the array; return a line for the user.

        Raises:
            JobError: the whole sweep is alive, the script is not here, or Slurm refuses.
        """
        if not SCRIPT.is_file():
            raise JobError(
                f"{SCRIPT}: is not here; submit from the directory of hpcfl's "
                "sources, or from one that `hpcfl init` has made"
            )
        with RunDir(self.root) as folder:
            # Tasks of earlier arrays may be alive in the same directory.
            runs = prepare(self._free(), folder, partly=True)
            left = self._left(runs)
            if not left:
                return self._nothing_to_do
            job = self._sbatch(left)
            SweepLog(self.root).write(
                "submitted", "sweep",
                f"Slurm job {job}: {len(left)} runs, {len(runs) - len(left)} finished before",
            )  # fmt: skip
        return f"how far they are: hpcfl status {self.root}"

    @property
    def _environment(self) -> dict[str, str]:
        return {"HPCFL_OUT": str(self.root), "HPCFL_PACK": str(self.parallel)}

    @property
    def _nothing_to_do(self) -> str:
        return f"{self.root}: nothing to submit: all runs are finished, or of tasks that run"

    def _task(self, point: Point) -> int:
        return point.number // self.parallel

    def _free(self) -> Sweep:
        """The sweep without the tasks of which a run is alive: another would wait for that run."""
        points = self.sweep.points
        alive = map_in_threads(RunDir.is_locked, [RunDir(self.root / p.name) for p in points])
        taken = {self._task(point) for point, found in zip(points, alive, strict=True) if found}
        free = tuple(point for point in points if self._task(point) not in taken)
        return replace(self.sweep, points=free)

    def _left(self, runs: Sequence[PendingRun]) -> list[Point]:
        return [run.point for run in runs if run.action != "skip"]

    def _words(self, points: Sequence[Point]) -> list[str]:
        """Those of sbatch."""
        tasks = ranges(sorted({self._task(point) for point in points}))
        try:
            options = shlex.split(self.options)
        except ValueError as e:
            raise JobError(f"--sbatch: found {self.options!r}: {e}") from e
        named = [f"--array={tasks}", f"--job-name={self.sweep.name}"]
        return [*named, *options, str(SCRIPT), str(self.sweep.path), *self.overrides]

    def _sbatch(self, points: Sequence[Point]) -> str:
        """Submit the tasks of these points; return the id of the job."""
        try:
            made = subprocess.run(  # noqa: S603
                ["sbatch", "--parsable", *self._words(points)],  # noqa: S607
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
