"""Run the points of a sweep as processes, as many at once as fit; skip finished ones.

ROOT/NAME/      the run directory of a point
ROOT/NAME.yaml  its job, as it was checked
ROOT/NAME.log   what its process said
ROOT/sweep.log  what happened, a line an event
ROOT/lock       held while the sweep is alive
"""

import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcfl.comm.launcher import detect
from hpcfl.data.base import DataConfig
from hpcfl.errors import DiskError, JobError, Stopped, SweepError, file_error
from hpcfl.io.memory import free_memory
from hpcfl.job.schema import Loaded
from hpcfl.models.base import ModelConfig
from hpcfl.run_dir.layout import SWEEP_LOG, RunDir
from hpcfl.runner.client_store import GIB
from hpcfl.runner.device import device_type
from hpcfl.runner.initial import fetch_data, fetch_model
from hpcfl.signals import STOP, Signals
from hpcfl.sweep.grid import Sweep
from hpcfl.sweep.pending import PendingRun, job_of, pending_runs, write_jobs
from hpcfl.sweep.process import RunProcess, mpirun
from hpcfl.sweep.progress import SweepProgress
from hpcfl.sweep.resources import cores, gpus, parallel_runs

LOOK_S = 0.2  # between two looks at the runs
# Exit codes of a run that a signal ended before it listened: its own, a shell's, MPICH's mpirun's.
_UNHEARD = {code for number in STOP for code in (-number, 128 + number, number)}
_UNHEARD -= {JobError.exit_code}  # which is SIGINT's number, too


@dataclass(frozen=True)
class Outcome:
    """What came of a sweep that went to its end."""

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
            raise Stopped(f"{names} stopped from outside; the same command goes on")
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
) -> Outcome:
    """Run what is not finished yet.

    Args:
        sweep: the checked sweep.
        root: the directory of its runs.
        parallel: how many runs at once; as many as fit when absent.
        partly: these are some of its points; others may be played at the same time.

    Raises:
        JobError: nothing was started, also where data cannot be had.
        Stopped: by a signal; the runs left checkpoints.
    """
    launch = detect(os.environ)
    if launch.size > 1 or launch.launcher not in ("none", "slurm"):
        raise JobError("start a sweep without mpirun or torchrun; `ranks` of the sweep file counts")
    if sweep.ranks > 1:
        mpirun()
    # A batch system's signal waits for the file that is fetched just now; Ctrl-C does not.
    with RunDir(root) as folder, Signals(latch_interrupt=False) as signals:
        todos = prepare(sweep, folder, signals, partly=partly)
        signals.latch_interrupt = True
        with SweepProgress(sweep.name, root / SWEEP_LOG, len(todos)) as board:
            failed = _Play(sweep, todos, parallel, board, signals).to_the_end()
    finished = [run.folder.root for run in todos if run.point.name not in failed]
    return Outcome(root, finished, failed)


def prepare(
    sweep: Sweep, folder: RunDir, signals: Signals | None = None, *, partly: bool = False
) -> list[PendingRun]:
    """Lock the sweep's directory, write the jobs that are to be started, fetch the data.

    Args:
        sweep: the checked sweep.
        folder: its directory.
        signals: what is asked of this process, where it listens.
        partly: see ``play``.

    Raises:
        JobError: another sweep is alive there, a run is, or the data cannot be had.
        Stopped: by a signal, before everything was fetched; nothing was started.
    """
    _make_root(folder.root)
    folder.lock("a sweep", shared=partly)
    todos = pending_runs(sweep, folder.root)
    _fetch([run.point.loaded for run in todos if run.action != "skip"], signals)
    write_jobs([run for run in todos if run.action == "start"])
    return todos


def write_job_files(sweep: Sweep, root: Path) -> list[Path]:
    """Write the job file of every point, for ``hpcfl run``, ``plan`` or a cluster script.

    Args:
        sweep: the checked sweep.
        root: the directory of its runs.

    Raises:
        JobError: a run is alive there, or a directory holds a run of another job.
    """
    runs = pending_runs(sweep, root)
    _make_root(root)
    return write_jobs(runs)


def _make_root(root: Path) -> None:
    """Make the directory of the runs."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        message = f"{root}: cannot be made: {e.strerror}; choose another with --out"
        raise file_error(e, message, JobError) from e


def _fetch(points: Sequence[Loaded], signals: Signals | None) -> None:
    """Bring files into place before several runs would do so at once, into one folder."""
    fetched: list[DataConfig | ModelConfig] = []
    for loaded in points:
        for section, fetch in ((loaded.job.data, fetch_data), (loaded.job.model, fetch_model)):
            if signals and signals.stop:
                raise _stopped(signals.stop)
            if section not in fetched:
                fetch(loaded)
                fetched.append(section)


def _stopped(number: int) -> Stopped:
    """The end of a sweep that the signal ``number`` stopped."""
    return Stopped(f"stopped by {signal.Signals(number).name}; the same command goes on")


class _Play:
    """A sweep that goes on."""

    def __init__(
        self,
        sweep: Sweep,
        todos: Sequence[PendingRun],
        parallel: int | None,
        board: SweepProgress,
        signals: Signals,
    ) -> None:
        self._ranks, self._todos = sweep.ranks, todos
        self._board, self._signals = board, signals
        self._queue = deque(run for run in todos if run.action != "skip")
        self._live: dict[int, tuple[PendingRun, RunProcess]] = {}  # by the slot it has
        self._failed: dict[str, int] = {}
        jobs = [run.point.loaded.job for run in todos]
        self._gpus = gpus() if any(device_type(job) == "cuda" for job in jobs) else []
        threads = max(job.threads for job in jobs)
        self._by_memory = parallel is None  # who says how many has thought of it
        if self._gpus:
            most = len(self._gpus) // sweep.ranks
            self._why = f"{len(self._gpus)} GPUs over {sweep.ranks} rank(s)"
        else:
            most = cores() // (sweep.ranks * threads)
            self._why = f"{cores()} cores over {sweep.ranks} rank(s) of {threads} thread(s)"
        self._most = parallel or max(1, most)
        caches = [job.store.cache_gib for job in jobs if job.store.kind == "hdf5"]
        self._cache = int(sweep.ranks * max(caches, default=0.0) * GIB)
        self._largest = 0  # bytes of the largest run so far that got through a round

    def to_the_end(self) -> dict[str, int]:
        """Start, watch and retire runs until none is left; the exit codes that are not 0."""
        self._open()
        asked = False
        try:
            while self._queue or self._live:
                if self._signals.stop and not asked:
                    asked = True
                    self._queue.clear()
                    for _, run in self._live.values():
                        run.stop()
                while self._queue and len(self._live) < self._most and self._fits():
                    self._start(self._queue.popleft())
                for slot in list(self._live):
                    self._look(slot)
                self._draw()
                time.sleep(LOOK_S)
        finally:
            for _, run in self._live.values():
                run.kill()
        if asked:
            raise _stopped(self._signals.stop)
        return self._failed

    def _open(self) -> None:
        skipped = [run for run in self._todos if run.action == "skip"]
        for run in skipped:
            self._board.say("skipped", run.point.name, "finished before")
        why = "as asked"
        if self._by_memory:
            why = f"{self._why}, where memory is left for what the first run turns out to need"
        self._board.say(
            "plan", "sweep", f"{len(self._queue)} runs to do, {len(skipped)} finished before, "
            f"{self._most} at once: {why}",
        )  # fmt: skip

    def _fits(self) -> bool:
        """Whether there is memory for one more run; the first one is always started."""
        free = free_memory() if self._live and self._by_memory else None
        if free is None:
            return True
        if not self._largest:
            return False  # one by one, until a run has shown what it needs
        # States may yet fill the cache of a run.
        taken = [run.taken for _, run in self._live.values()]
        return parallel_runs(free, self._largest + self._cache, taken)

    def _start(self, entry: PendingRun) -> None:
        slot = next(slot for slot in range(self._most) if slot not in self._live)
        point, folder = entry.point, entry.folder
        command = ["resume", str(folder.root)]
        if entry.action == "start":
            command = ["run", str(job_of(folder)), "--out", str(folder.root)]
        run = RunProcess(
            command,
            folder,
            point.loaded.job.rounds,
            entry.done,
            ranks=self._ranks,
            threads=point.loaded.job.threads,
            gpus=self._gpus_of(slot),
        )
        self._live[slot] = entry, run
        if entry.action == "resume":
            self._board.say("resumed", point.name, f"from round {entry.done}, log {run.log}")
        else:
            self._board.say("started", point.name, f"log {run.log}")

    def _gpus_of(self, slot: int) -> list[str]:
        """Those of a slot's ranks; more runs than fit, if asked for, share them in turn."""
        if not self._gpus:
            return []
        first, ranks = slot * self._ranks, min(self._ranks, len(self._gpus))
        return [self._gpus[(first + rank) % len(self._gpus)] for rank in range(ranks)]

    def _look(self, slot: int) -> None:
        entry, run = self._live[slot]
        code, name = run.look(), entry.point.name
        if run.settled:
            self._largest = max(self._largest, run.peak)
        if code is None:
            return
        del self._live[slot]
        if code == 0:
            self._board.say("finished", name, run.came_to())
            return
        words = run.last_words()
        stopped = code == Stopped.exit_code or words.startswith("Stopped: ")
        if self._signals.stop and stopped:
            self._board.say("stopped", name, words or "with a checkpoint")
        elif self._signals.stop and code in _UNHEARD:
            turn = "next" if run.done else "first"
            self._board.say("stopped", name, f"before its {turn} round")
        else:
            self._failed[name] = code
            self._board.say("failed", name, f"exit code {code}: {words or 'it said nothing'}")

    def _draw(self) -> None:
        live = {entry.point.name: (run.done, run.rounds) for entry, run in self._live.values()}
        over = len(self._todos) - len(self._queue) - len(live)
        self._board.draw(over, live)
