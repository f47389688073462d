"""Run the points of a sweep as processes, several at once; skip finished ones.

ROOT/NAME/      the run directory of a point
ROOT/NAME.yaml  its job, as it was checked
ROOT/NAME.log   the output of its process
ROOT/sweep.log  a line for each event: started, finished, failed, ...
ROOT/report.png the plot of all runs
ROOT/lock       held while the sweep is running

Other files of these names are not touched: the sweep is refused (``hpcfl.tools.sweep.own_files``).
"""

import math
import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import torch

from hpcfl.comm.launcher import detect
from hpcfl.data.base import DataConfig
from hpcfl.errors import DiskError, HpcflError, JobError, Stopped, SweepError, file_error
from hpcfl.io.atomic import make_folder
from hpcfl.io.cgroups import core_quotas, usable_cores
from hpcfl.io.files import present
from hpcfl.io.signals import STOP, Signals
from hpcfl.job.schema import LoadedJob
from hpcfl.models.base import ModelConfig
from hpcfl.runs.layout import RunDir
from hpcfl.runs.sweep_log import SweepLog
from hpcfl.start.components.initial_model import fetch_model
from hpcfl.start.components.load_data import fetch_data
from hpcfl.start.device import device_type
from hpcfl.tools.sweep.grid import Sweep
from hpcfl.tools.sweep.own_files import refuse_foreign
from hpcfl.tools.sweep.pending import PendingRun, job_of, pending_runs, write_jobs
from hpcfl.tools.sweep.process import RunProcess, mpirun

POLL_S = 0.2  # between two polls of the runs
# Exit codes of a run that a signal ended before it had installed its handlers, as Popen, a shell
# and MPICH's mpirun report them.
_BEFORE_SIGNALS = {code for number in STOP for code in (-number, 128 + number, number)}
# Failures, which are the numbers of SIGHUP and SIGINT, too.
_BEFORE_SIGNALS -= {HpcflError.exit_code, JobError.exit_code}


@dataclass(frozen=True)
class SweepOutcome:
    """The runs of a sweep that has ended."""

    root: Path
    finished: Sequence[Path]
    """Run directories, in the order of the grid."""
    failed: Mapping[str, int]
    """Exit codes of the other runs; negative: the signal that killed the run."""

    def check(self) -> None:
        """Raise where a run did not finish.

        Raises:
            SweepError: its exit code is 3 where all of them diverged, 2 where nothing was trained,
                74 where the disk failed one of them, as it would the others.
            Stopped: they were stopped, but not by the sweep.
        """
        codes, names = set(self.failed.values()), ", ".join(self.failed)
        if codes == {Stopped.exit_code}:
            raise Stopped(f"{names} stopped from outside; the same command resumes them")
        if codes:
            code = 3 if codes == {3} else 2 if codes == {2} and not self.finished else 1
            code = DiskError.exit_code if DiskError.exit_code in codes else code
            raise SweepError(
                f"{len(self.failed)} of {len(self.failed) + len(self.finished)} runs failed: "
                f"{names}; {self.root}/NAME.log says why; the same command tries them again",
                exit_code=code,
            )


def run_sweep(
    sweep: Sweep, root: Path, parallel: int | None = None, *, partly: bool = False
) -> SweepOutcome:
    """Run all points that are not finished yet.

    Args:
        sweep: the checked sweep.
        root: the directory of its runs.
        parallel: how many runs at once; as many as the cores or the GPUs allow when absent.
        partly: these are some of its points; another process may run others at the same time.

    Raises:
        JobError: nothing was started, also where data cannot be had.
        Stopped: by a signal; the runs left checkpoints.
    """
    launch = detect(os.environ)
    if launch.size > 1 or launch.launcher not in ("none", "slurm"):
        raise JobError("start a sweep without mpirun or torchrun; set `ranks` in the sweep file")
    if sweep.ranks > 1:
        mpirun()
    # A batch system's signal takes effect after the file that is being fetched; Ctrl-C at once.
    with RunDir(root) as folder, Signals(latch_interrupt=False) as signals:
        runs = prepare(sweep, folder, signals, partly=partly)
        signals.latch_interrupt = True
        failed = _Scheduler(sweep, runs, parallel, root, signals).run_all()
    finished = [run.folder.root for run in runs if run.point.name not in failed]
    return SweepOutcome(root, finished, failed)


def prepare(
    sweep: Sweep, folder: RunDir, signals: Signals | None = None, *, partly: bool = False
) -> list[PendingRun]:
    """Lock the sweep's directory, write the jobs that are to be started, fetch the data.

    Args:
        sweep: the checked sweep.
        folder: its directory.
        signals: the signals of this process; None: they are not handled.
        partly: see ``run_sweep``.

    Raises:
        JobError: another sweep is alive there, a run is, or the data cannot be had.
        Stopped: by a signal, before everything was fetched; nothing was started.
    """
    _make_root(sweep, folder.root)
    folder.lock("a sweep", shared=partly)
    runs = pending_runs(sweep, folder.root)
    _fetch([run.point.loaded for run in runs if run.action != "skip"], signals)
    write_jobs(runs)
    return runs


def _make_root(sweep: Sweep, root: Path) -> None:
    """Make the directory of the runs, not in that of a run: nobody would find them there.

    Raises:
        JobError: it is, or cannot be made, or holds other files of the sweep's names.
        DiskError: the disk is full or fails.
    """
    if present(RunDir(root).job):
        raise JobError(
            f"{root}: has a job.yaml, as the directory of a run; choose one for runs by --out"
        )
    RunDir(root).refuse_inside_run()
    refuse_foreign(sweep, root)
    try:
        make_folder(root)
    except OSError as e:
        message = f"{root}: cannot be made: {e.strerror}; choose another with --out"
        raise file_error(e, message, JobError) from e


def _fetch(points: Sequence[LoadedJob], signals: Signals | None) -> None:
    """Fetch the data and models once, before several runs would do so at the same time."""
    fetched: list[DataConfig | ModelConfig] = []
    for loaded in points:
        for section, fetch in ((loaded.job.data, fetch_data), (loaded.job.model, fetch_model)):
            if signals and signals.stop:
                raise _stopped(signals.stop)
            if section not in fetched:
                fetch(loaded)
                fetched.append(section)


def _stopped(number: int) -> Stopped:
    """The error of a sweep that the signal ``number`` stopped."""
    return Stopped(f"stopped by {signal.Signals(number).name}; the same command resumes")


class _Scheduler:
    """Starts runs in free slots, polls them, and logs what happens to them."""

    def __init__(
        self,
        sweep: Sweep,
        runs: Sequence[PendingRun],
        parallel: int | None,
        root: Path,
        signals: Signals,
    ) -> None:
        self._ranks, self._runs = sweep.ranks, runs
        self._root, self._log, self._signals = root, SweepLog(root), signals
        self._queue = deque(run for run in runs if run.action != "skip")
        self._active: dict[int, tuple[PendingRun, RunProcess]] = {}  # by the slot it has
        self._failed: dict[str, int] = {}
        jobs = [run.point.loaded.job for run in runs]
        self._gpus = gpus() if any(device_type(job) == "cuda" for job in jobs) else []
        threads = max(job.threads for job in jobs)
        if parallel:
            most, self._why = parallel, "as asked"
        elif self._gpus:
            most = len(self._gpus) // sweep.ranks
            self._why = f"{len(self._gpus)} GPUs over {sweep.ranks} rank(s)"
        else:
            most = cores() // (sweep.ranks * threads)
            self._why = f"{cores()} cores over {sweep.ranks} rank(s) of {threads} thread(s)"
        self._slots = max(1, most)  # one also where it asks for more than there is

    def run_all(self) -> dict[str, int]:
        """Run all pending runs; return the exit codes that are not 0, by name."""
        self._log_plan()
        asked = False
        try:
            while self._queue or self._active:
                if self._signals.stop and not asked:
                    asked = True
                    self._queue.clear()
                    for _, run in self._active.values():
                        run.stop()
                while self._queue and len(self._active) < self._slots:
                    self._start(self._queue.popleft())
                for slot in list(self._active):
                    self._poll(slot)
                time.sleep(POLL_S)
        finally:
            # None is left but where the sweep itself fails, and nobody would watch them any more.
            for _, run in self._active.values():
                run.kill()
        if asked:
            raise _stopped(self._signals.stop)
        return self._failed

    def _log_plan(self) -> None:
        skipped = [run for run in self._runs if run.action == "skip"]
        for run in skipped:
            self._log.write("skipped", run.point.name, "finished before")
        self._log.write(
            "plan", "sweep", f"{len(self._queue)} runs to do, {len(skipped)} finished before, "
            f"{self._slots} at once: {self._why}; hpcfl status {quote(str(self._root))} --follow "
            "shows how far they are",
        )  # fmt: skip

    def _start(self, entry: PendingRun) -> None:
        slot = next(slot for slot in range(self._slots) if slot not in self._active)
        point, folder = entry.point, entry.folder
        command = ["resume", str(folder.root), *entry.changes]
        if entry.action == "start":
            command = ["run", str(job_of(folder)), "--out", str(folder.root)]
        run = RunProcess(
            command,
            folder,
            ranks=self._ranks,
            threads=point.loaded.job.threads,
            gpus=self._gpus_of(slot),
        )
        self._active[slot] = entry, run
        if entry.action == "resume":
            self._log.write("resumed", point.name, f"from round {entry.done}, log {run.log}")
        else:
            self._log.write("started", point.name, f"log {run.log}")

    def _gpus_of(self, slot: int) -> list[str]:
        """The GPUs of a slot's ranks; with more slots than GPUs, slots share them."""
        if not self._gpus:
            return []
        first, ranks = slot * self._ranks, min(self._ranks, len(self._gpus))
        return [self._gpus[(first + rank) % len(self._gpus)] for rank in range(ranks)]

    def _poll(self, slot: int) -> None:
        entry, run = self._active[slot]
        code, name = run.poll(), entry.point.name
        if code is None:
            return
        del self._active[slot]
        if code == 0:
            self._log.write("finished", name, run.result())
            return
        words = run.last_message()
        stopped = code == Stopped.exit_code or words.startswith("Stopped: ")
        if self._signals.stop and stopped:
            self._log.write("stopped", name, words or "with a checkpoint")
        elif self._signals.stop and code in _BEFORE_SIGNALS:
            turn = "next" if entry.done else "first"
            self._log.write("stopped", name, f"before its {turn} round")
        else:
            self._failed[name] = code
            self._log.write("failed", name, f"exit code {code}: {words or 'no output'}")


def cores() -> int:
    """How many cores this process may use, whether or not it is bound to them."""
    found = [len(usable_cores())]
    # Of the step, or of the batch script outside of one.  SLURM_CPUS_PER_TASK would be too few
    # there: a sweep is one task, and may use those of all tasks.
    if (allocated := os.environ.get("SLURM_CPUS_ON_NODE", "")).isdigit():
        found.append(int(allocated))
    return max(1, min([*found, *map(math.ceil, core_quotas())]))


def gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(name.startswith("MIG-") for name in named):
        return named  # of these CUDA shows each process the first alone
    return named[:count] if named != [""] else [str(gpu) for gpu in range(count)]
