"""Submit a sweep to Slurm as an array."""

import os
import shlex
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import JobError
from hpcfl.io.threads import map_in_threads
from hpcfl.runs.layout import RunDir
from hpcfl.runs.sweep_log import SweepLog, read_sweep_log
from hpcfl.sweep.grid import Sweep
from hpcfl.sweep.pending import PendingRun, edited_notes, pending_runs
from hpcfl.sweep.run_sweep import prepare

SCRIPT = Path("slurm/array.sh")
_ELSEWHERE = "which run, or wait in the queue"


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
        alive = self._alive()
        runs = pending_runs(self._without(alive), self.root)
        share = self._share(runs, alive)
        if not share.tasks:
            return self._nothing_to_do(runs, share)
        # With a quote before its "=" bash takes an assignment for a command.
        words = [f"{key}={shlex.quote(value)}" for key, value in self._environment.items()]
        return " ".join([*words, shlex.join(self._command(share.tasks))])

    def submit(self) -> str:
        """Submit the array; return a line for the user.

        Raises:
            JobError: nothing was submitted: the whole sweep is alive, the script is not here, or
                Slurm refuses or does not answer.
        """
        if not SCRIPT.is_file():
            raise JobError(
                f"{SCRIPT}: is not here; submit from the directory of hpcfl's "
                "sources, or from one that `hpcfl init` has made"
            )
        with RunDir(self.root) as folder:
            alive = self._alive()
            # Tasks of earlier arrays may be alive in the same directory.
            runs = prepare(self._without(alive), folder, partly=True)
            share = self._share(runs, alive)
            if not share.tasks:
                return self._nothing_to_do(runs, share)
            job = self._sbatch(share.tasks)
            left_out = f"; {share.left_out} left out, {_ELSEWHERE}" * bool(share.left_out)
            log = SweepLog(self.root)
            log.write(
                "submitted", "sweep", f"Slurm job {job}: {share.runs} runs, {share.finished} "
                f"finished before, {self.parallel} a task{left_out}",
            )  # fmt: skip
            for note in edited_notes(runs):
                log.write("note", "sweep", note)
        return f"how far they are: hpcfl status {self.root}"

    @property
    def _environment(self) -> dict[str, str]:
        return {"HPCFL_OUT": str(self.root), "HPCFL_PACK": str(self.parallel)}

    def _nothing_to_do(self, runs: Sequence[PendingRun], share: "_Share") -> str:
        line = f"{self.root}: all {share.finished} runs are finished, nothing to submit"
        if share.left_out:
            line = (
                f"{self.root}: nothing to submit: {share.finished} runs finished before, "
                f"{share.left_out} left out, {_ELSEWHERE}"
            )
        return "\n".join([line, *edited_notes(runs)])

    def _alive(self) -> set[int]:
        """The points whose runs are alive."""
        folders = [RunDir(self.root / point.name) for point in self.sweep.points]
        return {at for at, alive in enumerate(map_in_threads(RunDir.is_locked, folders)) if alive}

    def _without(self, points: Collection[int]) -> Sweep:
        """The sweep without some of its points."""
        kept = [point for at, point in enumerate(self.sweep.points) if at not in points]
        return replace(self.sweep, points=tuple(kept))

    def _share(self, runs: Sequence[PendingRun], alive: Collection[int]) -> "_Share":
        """Divide what is not finished into the tasks to submit, and what others run or will run.

        A task of which another one runs a point would wait for it, with all that it was given.

        Args:
            runs: of the points that are not alive.
            alive: the other points.
        """
        pack, left = self.parallel, set(alive)
        places = (at for at in range(len(self.sweep.points)) if at not in alive)
        left |= {at for at, run in zip(places, runs, strict=True) if run.action != "skip"}
        taken = {at // pack for at in (*alive, *_queued(self.root))}
        free = [at for at in sorted(left) if at // pack not in taken]
        return _Share(
            sorted({at // pack for at in free}),
            len(free),
            len(self.sweep.points) - len(left),
            len(left) - len(free),
        )

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
            made = _call([name, "--parsable", *words], {**os.environ, **self._environment})
        except OSError as e:
            raise JobError(f"sbatch: {e.strerror}; submit where Slurm is installed") from e
        if made.returncode:
            raise JobError(made.stderr.strip())
        return made.stdout.strip().partition(";")[0]  # the cluster's name may follow


class _Share(NamedTuple):
    """What of a sweep is to be submitted."""

    tasks: Sequence[int]
    """Of the array."""
    runs: int
    """In these tasks, not finished."""
    finished: int
    left_out: int
    """Not finished, but of others."""


def _queued(root: Path) -> Iterator[int]:
    """The points of the tasks in the queue that were submitted from a sweep's directory before.

    Raises:
        JobError: Slurm does not answer.
    """
    events = read_sweep_log(root)
    if events is None or not events.submitted:
        return
    try:
        said = _call(["squeue", "-h", "-r", f"--user={os.getuid()}", "-o", "%F %K"], os.environ)
    except OSError:  # no Slurm here; sbatch says so
        return
    if said.returncode:
        raise JobError(
            f"squeue: {said.stderr.strip()}: it is not known which runs are in the queue; give the "
            "command again once Slurm answers"
        )
    for line in said.stdout.splitlines():
        job, _, task = line.partition(" ")
        pack = events.submitted.get(job)
        if pack and task.isdigit():
            yield from range(int(task) * pack, (int(task) + 1) * pack)


def _call(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        command, env=environment, capture_output=True, text=True, check=False
    )


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as sbatch takes them: "0-2,5"."""
    found = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(found)
