"""Kill small runs at random instants, resume them elsewhere, and compare with undisturbed runs.

Each attempt is started by the command line.  SIGKILL ends one rank or all of them; or the attempt
gets a signal to stop, and must then write a checkpoint and exit with 75.  The next attempt resumes
on another number of ranks and with another store, and must start no earlier than at the newest
checkpoint that was ever committed.  The model, every client's state and the log of the last attempt
are compared with those of an undisturbed run, bit for bit.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, JobError, StoreError
from hpcfl.io.progress import track
from hpcfl.runs.job_file.yaml_file import as_yaml
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader
from hpcfl.runs.log_keys import measured
from hpcfl.runs.manifest import MANIFEST
from hpcfl.tools.exports.checkpoint import export
from hpcfl.tools.sweep.process import mpirun

ALGORITHMS = ("fedhbm", "scaffold", "adabest", "localghb")
RANKS = (1, 2, 3)
ROUNDS = 24
JOB = {
    "data": {"kind": "quadratics", "clients": 9, "dim": 3000, "spread": 0.5},
    "model": {"name": "point"},
    "cohort": {"kind": "bernoulli", "p": 0.4},
    "local": {"steps": 2, "batch_size": "full", "lr": 0.1},
    "rounds": ROUNDS,
    "device": "cpu",
}
KILLS = 5
"""The most kills of one run; then it runs to its end and is compared."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Signals at which a run finishes its round, writes a checkpoint and exits with 75."""
PATIENCE_S = 300.0
"""An attempt without a change in its files for so long counts as hanging."""
POLL_S = 0.002
LOAD_S = 3.0  # instants before the first round are drawn within so many seconds
CHANGES = 30  # of log and checkpoints, after which an attempt is killed at the latest
PAUSE_S = 0.02  # and within so many seconds more: about a round
ENOUGH = 4  # failed runs after which no more are started

_PROC = Path("/proc")
_RANK = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")
_OVERSUBSCRIBE = {  # allows more ranks than cores, in Open MPI 4 and 5; other MPIs ignore it
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_LINE = re.compile(r"\w+Error: .+")  # the line with the reason why a run was refused


@dataclass
class Tally:
    """The counts of all attempts so far."""

    notes: list[str] = field(default_factory=list)
    starts: int = 0
    killed: int = 0
    stopped: int = 0
    """By a signal to stop."""
    moved: int = 0
    """Resumed on another number of ranks."""
    runs: int = 0
    """Finished and compared."""
    wrong: list[str] = field(default_factory=list)
    """A line for each failure."""

    def __str__(self) -> str:
        return "\n".join(
            [
                f"starts         {self.starts}: {self.killed} killed, {self.stopped} stopped, "
                f"{self.moved} resumed on another number of ranks",
                f"runs           {self.runs} compared with undisturbed ones",
                f"disagreements  {len(self.wrong)}",
                *(f"  {text}" for text in (*self.notes, *self.wrong)),
            ]
        )

    def check(self) -> None:
        """Fail if anything was wrong.

        Raises:
            HpcflError: something was.
        """
        if self.wrong:
            raise HpcflError(f"{len(self.wrong)} wrong, see above; the directories are kept")


def selftest(root: Path, kills: int, ranks: Sequence[int] | None, seed: int) -> Tally:
    """Run jobs of all algorithms in turn until enough attempts were killed or stopped.

    Args:
        root: an empty directory, or one to be created; it is removed if nothing is wrong.
        kills: the number of attempts that are ended, a quarter of them by a signal to stop.
        ranks: numbers of ranks to change between; 1, 2 and 3 when None, or 1 without an mpirun.
        seed: of all draws; the instants of kills still depend on the machine's timing.

    Raises:
        JobError: the directory is not empty, or there is no mpirun for several ranks.
    """
    if sys.platform != "linux":
        raise JobError("selftest: needs Linux, whose /proc lists the processes of a run")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise JobError(f"{root}: cannot be made: {e.strerror}; choose another") from e
    if any(root.iterdir()):
        raise JobError(f"{root}: is not empty; remove it, or choose another")
    sizes, tally = list(ranks or RANKS), Tally()
    if max(sizes) > 1:
        try:
            mpirun()
        except JobError as e:
            if ranks is not None:
                raise
            sizes = [1]
            tally.notes.append(f"on 1 rank alone: {e}")
    tester = SelfTest(root, sizes, Random(seed), tally)
    for _ in track(tester.run(kills), "kills", kills):
        pass
    if not tally.wrong:
        shutil.rmtree(root)
    return tally


class SelfTest:
    """The runs under one directory, one after the other."""

    def __init__(self, root: Path, sizes: Sequence[int], draw: Random, tally: Tally) -> None:
        self._root, self._sizes, self._draw, self._tally = root, sizes, draw, tally
        self._undisturbed_outcomes: dict[str, RunBits] = {}  # by algorithm

    def run(self, kills: int) -> Iterator[None]:
        """Run until enough attempts were killed or stopped; yield after each of these."""
        left, number = kills, 0
        most = min(KILLS, -(-left // len(ALGORITHMS)))  # few kills are spread over all algorithms
        while left and len(self._tally.wrong) < ENOUGH:
            algorithm = ALGORITHMS[number % len(ALGORITHMS)]
            number += 1
            if algorithm not in self._undisturbed_outcomes and not self._undisturbed(algorithm):
                return
            for _ in self._disturbed(f"{number:03d}-{algorithm}", algorithm, min(left, most)):
                left -= 1
                yield

    def _undisturbed(self, algorithm: str) -> bool:
        """Run without kills, for the comparison; return whether it finished."""
        folder, job = self._new(f"000-{algorithm}", algorithm)
        start = Start(self._sizes[0], ["run", str(job), "--out", str(folder.root)])
        ending = run_attempt(start, None, folder)
        self._tally.starts += 1
        if ending.kind != "finished":
            self._tally.wrong.append(f"{folder.root}: undisturbed: {ending.fault}")
            return False
        self._undisturbed_outcomes[algorithm] = outcome(folder)
        return True

    def _disturbed(self, name: str, algorithm: str, kills: int) -> Iterator[None]:
        """Run one job to its end through at most ``kills`` kills; yield after each."""
        folder, job = self._new(name, algorithm)
        resuming, before, newest = False, 0, -1
        ending = Ending("killed")
        while ending.kind != "finished":
            size = self._draw.choice([n for n in self._sizes if n != before] or self._sizes)
            resume = ["resume", str(folder.root), *self._settings()]
            arguments = resume if resuming else ["run", str(job), "--out", str(folder.root)]
            start = Start(size, arguments, refusable=resuming and newest < 0)
            ending = run_attempt(start, draw_kill(self._draw) if kills else None, folder)
            self._tally.starts += 1
            if ending.kind == "wrong":
                self._tally.wrong.append(f"{folder.root}: {ending.fault}")
                return
            if ending.began is not None and ending.began < newest:
                self._tally.wrong.append(
                    f"{folder.root}: an attempt began at round {ending.began}, though round "
                    f"{newest} was committed before"
                )
                return
            self._tally.moved += resuming and ending.began is not None and size != before
            before, newest = size, max(newest, ending.committed)
            resuming = ending.kind != "refused" and folder.job.exists()
            self._tally.killed += ending.kind == "killed"
            self._tally.stopped += ending.kind == "stopped"
            if ending.kind in ("killed", "stopped"):
                kills -= 1
                yield
        self._compare(folder, algorithm)

    def _compare(self, folder: RunDir, algorithm: str) -> None:
        """Compare the run with the undisturbed one; remove its files if both agree."""
        self._tally.runs += 1
        try:
            differing = outcome(folder).differences(self._undisturbed_outcomes[algorithm])
        except StoreError as e:
            self._tally.wrong.append(f"{folder.root}: {e}")
            return
        if differing:
            self._tally.wrong.append(f"{folder.root}: other bits: {', '.join(differing)}")
            return
        shutil.rmtree(folder.root)
        for end in ("yaml", "log"):
            folder.root.with_name(f"{folder.root.name}.{end}").unlink(missing_ok=True)

    def _new(self, name: str, algorithm: str) -> tuple[RunDir, Path]:
        """The path of a new run directory, and the file of its job."""
        job = self._root / f"{name}.yaml"
        checkpoint = {"every": 2, "keep": 2}
        tree = {**JOB, "algorithm": {"name": algorithm}, "checkpoint": checkpoint}
        job.write_text(as_yaml(tree))
        return RunDir(self._root / name), job

    def _settings(self) -> list[str]:
        """Overrides of store and checkpoints, drawn, that must not change a bit."""
        # A folder under the root stands for a disk of the node.
        scratch = json.dumps(str(self._root.absolute() / "scratch"))
        gib, folder = self._draw.choice([("1.0", "null"), ("0.0", "null"), ("0.0", scratch)])
        # So few minutes make a checkpoint due after every round or two, at rounds that vary.
        minutes = self._draw.choice(["null", "null", "0.001"])
        every = self._draw.choice([2, 3])
        return [
            f"store.cache_gib={gib}",
            f"store.dir={folder}",
            f"checkpoint.every={every}",
            f"checkpoint.minutes={minutes}",
        ]


class Kill(NamedTuple):
    """How to end one attempt."""

    changes: int | None
    """Changes of log and checkpoints after which it is ended; None: before its first round."""
    fraction: float
    """The instant in the seconds that follow."""
    victim: float | None
    """The rank, as a fraction of the number of ranks; None: all ranks."""
    signal: signal.Signals


def draw_kill(draw: Random) -> Kill:
    """A signal to one rank or all, at a random instant of the start or of the rounds."""
    number = draw.choice([signal.SIGKILL] * 3 * len(STOP_SIGNALS) + [*STOP_SIGNALS])
    changes = None if draw.random() < 1 / 6 else draw.randrange(CHANGES)
    return Kill(changes, draw.random(), draw.choice([None, draw.random()]), number)


class Start(NamedTuple):
    """How an attempt is started."""

    ranks: int
    arguments: Sequence[str]
    """The words after ``hpcfl``."""
    refusable: bool = False
    """Whether there may be no checkpoint to resume from, so that a refusal is no failure."""


class Ending(NamedTuple):
    """How an attempt ended."""

    kind: Literal["killed", "stopped", "finished", "refused", "wrong"]
    fault: str = ""
    began: int | None = None
    """The round that it started from; None if it ended before it recorded that."""
    committed: int = -1
    """The newest round that was ever committed before it ended; -1 if none was."""


def run_attempt(start: Start, kill: Kill | None, folder: RunDir) -> Ending:
    """Start an attempt, kill it as ``kill`` describes unless it ends earlier, and classify its end.

    Args:
        start: of the attempt.
        kill: None to let it run to its end.
        folder: the run directory.
    """
    log = folder.root.with_name(f"{folder.root.name}.log")
    first = last = read_activity(folder)
    newest, changes, due = first.committed, 0, None
    begun = changed = time.monotonic()
    killed = False
    with Attempt(start.ranks, start.arguments, log) as attempt:
        while attempt.code is None and not killed:
            time.sleep(POLL_S)
            now, current = time.monotonic(), read_activity(folder)
            newest = max(newest, current.committed)
            if current != last:
                changes += current.starts != first.starts
                changed, last = now, current
            if now - changed > PATIENCE_S:
                return Ending("wrong", f"an attempt that did nothing for {PATIENCE_S:.0f} s")
            if kill and kill.changes is None:
                due = begun + LOAD_S * kill.fraction
            elif kill and due is None and kill.changes is not None and changes > kill.changes:
                due = now + PAUSE_S * kill.fraction
            if kill and due is not None and now >= due:
                pids = attempt.ranks() or attempt.processes()
                one = int((kill.victim or 0.0) * len(pids))
                attempt.kill(pids if kill.victim is None else pids[one : one + 1], kill.signal)
                killed = bool(pids)  # it may have ended just now
        if attempt.has_survivors():
            return Ending("wrong", f"processes that outlived a rank by {PATIENCE_S:.0f} s")
        current = read_activity(folder)
        newest = max(newest, current.committed)
        recorded = current.starts != first.starts
        began = int(folder.last_start["round"]) if recorded else None
        ending = _ending(attempt, kill if killed else None, began, refusable=start.refusable)
    return ending._replace(began=began, committed=newest)


def _ending(attempt: "Attempt", kill: Kill | None, began: int | None, *, refusable: bool) -> Ending:
    """Classify the end of an attempt that was ended by ``kill``, or by itself.

    Without a checkpoint, one clear error with exit code 2 is a correct refusal.
    """
    lines = attempt.output_lines()
    if attempt.code == 0:
        return Ending("finished")
    if kill and kill.signal == signal.SIGKILL:
        return Ending("killed")
    if kill:
        fault = fault_of_stop(lines, attempt.code, began)
        return Ending("wrong" if fault else "stopped", fault)
    errors = [line for line in lines if _LINE.match(line)]
    clear = attempt.code == 2 and len(errors) == 1 and not any("Traceback" in w for w in lines)
    if clear and refusable:
        return Ending("refused")
    last = errors or [line for line in lines if line] or ["nothing"]
    return Ending("wrong", f"exit code {attempt.code} of an attempt that said: {last[-1]}")


def fault_of_stop(lines: Sequence[str], code: int | None, began: int | None) -> str:
    """The fault of a run that got a signal to stop; empty if it stopped correctly."""
    if any("Traceback" in line for line in lines):
        return "a traceback after a signal to stop"
    # Before MPI has started, the exit code may be the launcher's.
    if began is not None and code != 75:
        return f"exit code {code} after a signal to stop where 75 was expected"
    return ""


class Attempt:
    """The processes of one start of a run; a context manager that leaves none behind.

    Args:
        ranks: how many; more than one are started by mpirun.
        arguments: of hpcfl.
        log: a file to which the output is appended.
    """

    def __init__(self, ranks: int, arguments: Sequence[str], log: Path) -> None:
        # In the environment of its processes, by which they are found.
        name, value = "HPCFL_SELFTEST", uuid4().hex
        self._token = f"{name}={value}".encode()
        self._log, self._log_start = log, log.stat().st_size if log.exists() else 0
        own = [sys.executable, "-m", "hpcfl", *arguments]
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603
                own if ranks == 1 else [mpirun(), "-n", str(ranks), *own],
                env={"OMP_NUM_THREADS": "1", **_OVERSUBSCRIBE, **os.environ, name: value},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this program, which ends the attempt
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill(self.processes(), signal.SIGKILL)
        self._process.wait()

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def ranks(self) -> list[int]:
        """The process ids of the ranks that are running, rank 0 first."""
        found: dict[int, int] = {}
        for pid in self._own():
            try:
                words = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
                command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended meanwhile
                continue
            if command[:3] == [os.fsencode(sys.executable), b"-m", b"hpcfl"]:
                rank = next((w for w in words if w.startswith(_RANK)), b"=0")
                # A rank's own process id comes before those of the processes that it forked.
                found.setdefault(int(rank.partition(b"=")[2]), pid)
        return [found[rank] for rank in sorted(found)]

    def processes(self) -> list[int]:
        """The process ids of all that are running, the launcher included."""
        return sorted({*self._own(), *([] if self.code is not None else [self._process.pid])})

    def kill(self, pids: Sequence[int], number: signal.Signals) -> None:
        """Send a signal to processes; those that have ended are skipped."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def has_survivors(self) -> bool:
        """Wait until all processes have ended; return True if some run on after ``PATIENCE_S``."""
        deadline = time.monotonic() + PATIENCE_S
        while self.processes():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    def output_lines(self) -> list[str]:
        """The lines of this attempt's output so far."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace").splitlines()

    def _own(self) -> Iterator[int]:
        for path in _PROC.glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or belongs to another user
                if self._token in (path / "environ").read_bytes().split(b"\0"):
                    yield int(path.name)


class RunActivity(NamedTuple):
    """What a run writes, as its files show it; any change shows that it is alive."""

    starts: int
    """Bytes of the history."""
    rounds: int
    """Bytes of the log."""
    checkpoints: int
    """The time of the last change of the folder of the checkpoints, in nanoseconds."""
    committed: int
    """The round of the newest committed checkpoint; -1 if there is none."""


def read_activity(folder: RunDir) -> RunActivity:
    """What the run has written by now."""
    log, starts = folder.log, folder.history
    return RunActivity(
        starts.stat().st_size if starts.exists() else 0,
        log.stat().st_size if log.exists() else 0,
        folder.checkpoints.stat().st_mtime_ns if folder.checkpoints.exists() else 0,
        committed(folder),
    )


def committed(folder: RunDir) -> int:
    """The round of the newest committed checkpoint; -1 if there is none."""
    manifests = folder.checkpoints.glob(f"*/{MANIFEST}")
    return max((int(path.parent.name) for path in manifests), default=-1)


class RunBits(NamedTuple):
    """The model, states and log of a finished run."""

    arrays: Mapping[str, NDArray[Any]]
    """The model ``x``, the ids of the clients with a state, and every field of their states."""
    log: list[dict[str, Any]]
    """The lines of the log, without measured times."""

    def differences(self, other: "RunBits") -> list[str]:
        """The names of the arrays, and of the log, that differ in any bit."""
        found = [name for name in ("x", "client") if not _same(self.arrays, other.arrays, name)]
        names = [name for name in {**self.arrays, **other.arrays} if name.startswith("state_")]
        found += [name for name in names if not _same(self.arrays, other.arrays, name)]
        return found + ["log.jsonl"] * (self.log != other.log)


def outcome(folder: RunDir) -> RunBits:
    """Read the newest checkpoint and the log of a run.

    Raises:
        StoreError: a file is damaged.
    """
    with tempfile.TemporaryDirectory() as name:
        (path,) = export(
            folder.root, round=None, npz=Path(name, "F.npz"), state_dict=None, clients=True
        )
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    log = LogReader(folder.log).read()
    return RunBits(arrays, [{k: v for k, v in entry.items() if not measured(k)} for entry in log])


def _same(ours: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]], name: str) -> bool:
    """Whether both have the array with the same bits: NaN is NaN, and 0 is not -0."""
    if name not in ours or name not in others:
        return False
    a, b = ours[name], others[name]
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
