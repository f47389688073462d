"""Kill small runs at random instants, resume them elsewhere, and compare with undisturbed runs.

Each attempt is started by the command line.  SIGKILL ends one rank or all of them; or the attempt
gets a signal to stop, and must then write a checkpoint and exit with 75.  The next attempt resumes
on another number of ranks and with another store, and must start no earlier than at the newest
checkpoint that was ever committed.  The model, every client's state and the log of the last attempt
are compared with those of an undisturbed run, bit for bit.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import HpcflError, JobError, Stopped, StoreError
from hpcfl.io.progress import track
from hpcfl.runs.job_file.yaml_file import as_yaml
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader
from hpcfl.runs.log_keys import measured
from hpcfl.runs.manifest import committed_folders
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
LOAD_S = 3.0  # an attempt killed before its first round is killed within so many seconds
CHANGES = 30  # of log and checkpoints, after which an attempt is killed at the latest
PAUSE_S = 0.02  # and within so many seconds more: about a round

_PROC = Path("/proc")
_RANK = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")
_OVERSUBSCRIBE = {  # allows more ranks than cores, in Open MPI 4 and 5; other MPIs ignore it
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class SelfTestError(HpcflError):
    """A run of the test that did not do what is promised; its directory is kept."""


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

    def __str__(self) -> str:
        return "\n".join(
            [
                f"starts         {self.starts}: {self.killed} killed, {self.stopped} stopped, "
                f"{self.moved} resumed on another number of ranks",
                f"runs           {self.runs} compared with undisturbed ones",
                "disagreements  0",
                *(f"  {text}" for text in self.notes),
            ]
        )


def selftest(root: Path, kills: int) -> Tally:
    """Run jobs of all algorithms in turn until enough attempts were killed or stopped.

    Without an mpirun all attempts are on one rank, which the result says.

    Args:
        root: an empty directory, or one to be created; it is removed if nothing is wrong.
        kills: the number of attempts that are ended, a quarter of them by a signal to stop.

    Raises:
        JobError: the directory is not empty, or this is not Linux.
        SelfTestError: a run did not do what is promised.
    """
    if sys.platform != "linux":
        raise JobError("selftest: needs Linux, whose /proc lists the processes of a run")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise JobError(f"{root}: cannot be made: {e.strerror}; choose another") from e
    if any(root.iterdir()):
        raise JobError(f"{root}: is not empty; remove it, or choose another")
    tester = SelfTest(root, RANKS)
    try:
        mpirun()
    except JobError as e:
        tester = SelfTest(root, (1,))
        tester.tally.notes.append(f"on 1 rank alone: {e}")
    for _ in track(tester.run(kills), "kills", kills):
        pass
    shutil.rmtree(root)
    return tester.tally


class SelfTest:
    """The runs under one directory, one after the other, on the numbers of ranks ``sizes``."""

    def __init__(self, root: Path, sizes: Sequence[int]) -> None:
        self._root, self._sizes = root, sizes
        self._draw = Random(0)
        self._expected: dict[str, RunBits] = {}  # by algorithm, of the undisturbed run
        self.tally = Tally()

    def run(self, kills: int) -> Iterator[None]:
        """Run until enough attempts were killed or stopped; yield after each of these.

        Raises:
            SelfTestError: a run did not do what is promised.
        """
        most = min(KILLS, -(-kills // len(ALGORITHMS)))  # few kills are spread over all algorithms
        for number in count():
            algorithm = ALGORITHMS[number % len(ALGORITHMS)]
            if not kills:
                return
            if algorithm not in self._expected:
                folder, command = self._new(f"undisturbed-{algorithm}", algorithm)
                self._attempt(self._sizes[0], command, None, folder)
                self._expected[algorithm] = outcome(folder)
            name = f"{number + 1:03d}-{algorithm}"
            for _ in self._disturbed(name, algorithm, min(kills, most)):
                kills -= 1
                yield

    def _disturbed(self, name: str, algorithm: str, kills: int) -> Iterator[None]:
        """Run one job to its end through at most ``kills`` kills; yield after each."""
        folder, command = self._new(name, algorithm)
        size, newest = 0, -1
        while True:
            before = size
            size = self._draw.choice([n for n in self._sizes if n != before] or self._sizes)
            if newest >= 0:
                command = ["resume", str(folder.root), *self._settings()]
            kill = draw_kill(self._draw) if kills else None
            ending = self._attempt(size, command, kill, folder)
            if ending.began is not None and ending.began < newest:
                raise SelfTestError(
                    f"{folder.root}: an attempt began at round {ending.began}, though round "
                    f"{newest} was committed before"
                )
            self.tally.moved += newest >= 0 and ending.began is not None and size != before
            newest = max(newest, ending.committed)
            if ending.kind == "finished":
                break
            self.tally.killed += ending.kind == "killed"
            self.tally.stopped += ending.kind == "stopped"
            kills -= 1
            yield
        self.tally.runs += 1
        try:
            differing = outcome(folder).differences(self._expected[algorithm])
        except StoreError as e:
            raise SelfTestError(f"{folder.root}: {e}") from e
        if differing:
            raise SelfTestError(f"{folder.root}: other bits: {', '.join(differing)}")
        shutil.rmtree(folder.root)

    def _attempt(
        self, size: int, command: Sequence[str], kill: "Kill | None", folder: RunDir
    ) -> "Ending":
        self.tally.starts += 1
        return run_attempt(size, command, kill, folder)

    def _new(self, name: str, algorithm: str) -> tuple[RunDir, list[str]]:
        """A new run directory, and the command that starts its run."""
        folder, job = RunDir(self._root / name), self._root / f"{name}.yaml"
        checkpoint = {"every": 2, "keep": 2}
        job.write_text(as_yaml({**JOB, "algorithm": {"name": algorithm}, "checkpoint": checkpoint}))
        return folder, ["run", str(job), "--out", str(folder.root)]

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

    changes: int
    """Changes of its files after which it is ended; 0: before its first round."""
    fraction: float
    """The instant in the seconds that follow."""
    victim: float | None
    """The rank, as a fraction of the number of ranks; None: all ranks."""
    signal: signal.Signals


def draw_kill(draw: Random) -> Kill:
    """A signal to one rank or all, at a random instant of the start or of the rounds."""
    number = draw.choice([signal.SIGKILL] * 3 * len(STOP_SIGNALS) + [*STOP_SIGNALS])
    changes = 0 if draw.random() < 1 / 6 else draw.randint(1, CHANGES)
    return Kill(changes, draw.random(), draw.choice([None, draw.random()]), number)


class Ending(NamedTuple):
    """How an attempt ended."""

    kind: Literal["killed", "stopped", "finished"]
    began: int | None
    """The round that it started from; None if it ended before it recorded that."""
    committed: int
    """The newest round that was ever committed before it ended; -1 if none was."""


def run_attempt(ranks: int, command: Sequence[str], kill: Kill | None, folder: RunDir) -> Ending:
    """Start an attempt, and kill it as ``kill`` describes unless it ends earlier.

    Args:
        ranks: how many; more than one are started by mpirun.
        command: of hpcfl, with its arguments.
        kill: None to let it run to its end.
        folder: the run directory.

    Raises:
        SelfTestError: it hangs, leaves processes behind, fails, or does not stop at a signal.
    """
    first = last = _activity(folder)
    newest, changes, killed = committed(folder), 0, False
    changed = time.monotonic()
    due = changed + LOAD_S * kill.fraction if kill and not kill.changes else inf
    with Attempt(ranks, command, folder.root.with_name(f"{folder.root.name}.log")) as attempt:
        while attempt.code is None and not killed:
            time.sleep(POLL_S)
            now, current = time.monotonic(), _activity(folder)
            newest = max(newest, committed(folder))
            if current != last:
                changed, last = now, current
                changes += current[0] != first[0]  # its start is in the history
                if kill and kill.changes == changes:
                    due = now + PAUSE_S * kill.fraction
            if now - changed > PATIENCE_S:
                raise SelfTestError(f"{folder.root}: an attempt did nothing for {PATIENCE_S:.0f} s")
            if kill and now >= due:
                pids = attempt.ranks() or attempt.processes()
                one = int((kill.victim or 0.0) * len(pids))
                attempt.kill(pids if kill.victim is None else pids[one : one + 1], kill.signal)
                killed = bool(pids)  # it may have ended just now
        if attempt.has_survivors():
            raise SelfTestError(
                f"{folder.root}: processes outlived the first rank by {PATIENCE_S:.0f} s"
            )
        newest = max(newest, committed(folder))
        recorded = _activity(folder)[0] != first[0]
        began = int(folder.last_start["round"]) if recorded else None
        kind = _kind(attempt, kill.signal if kill and killed else None, began)
    return Ending(kind, began, newest)


def _kind(
    attempt: "Attempt", signalled: signal.Signals | None, began: int | None
) -> Literal["killed", "stopped", "finished"]:
    """How an attempt ended that got a signal, or none.

    Raises:
        SelfTestError: it failed by itself, or did not stop as the signal asks.
    """
    if attempt.code == 0:
        return "finished"
    if signalled == signal.SIGKILL:
        return "killed"
    wrong = f"{attempt.log}: exit code {attempt.code}"
    if signalled is None:
        raise SelfTestError(f"{wrong} of an attempt that nothing disturbed")
    if attempt.said("Traceback"):
        raise SelfTestError(f"{attempt.log}: a traceback after {signalled.name}")
    # Before MPI has started, the exit code may be the launcher's.
    if began is not None and attempt.code != Stopped.exit_code:
        raise SelfTestError(f"{wrong} after {signalled.name}, expected {Stopped.exit_code}")
    return "stopped"


class Attempt:
    """The processes of one start of a run; a context manager that leaves none behind.

    Args:
        ranks: how many; more than one are started by mpirun.
        command: of hpcfl, with its arguments.
        log: a file to which the output is appended.
    """

    def __init__(self, ranks: int, command: Sequence[str], log: Path) -> None:
        # In the environment of its processes, by which they are found.
        name, value = "HPCFL_SELFTEST", uuid4().hex
        self._token = f"{name}={value}".encode()
        self.log, self._log_start = log, log.stat().st_size if log.exists() else 0
        own = [sys.executable, "-m", "hpcfl", *command]
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
        for pid, words in self._environments():
            with suppress(OSError):  # it ended meanwhile
                command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
                if command[:3] == [os.fsencode(sys.executable), b"-m", b"hpcfl"]:
                    rank = next((w for w in words if w.startswith(_RANK)), b"=0")
                    # A rank's own process id comes before those of the processes that it forked.
                    found.setdefault(int(rank.partition(b"=")[2]), pid)
        return [found[rank] for rank in sorted(found)]

    def processes(self) -> list[int]:
        """The process ids of all that are running, the launcher included."""
        return [pid for pid, _ in self._environments()]

    def kill(self, pids: Sequence[int], number: signal.Signals) -> None:
        """Send a signal to processes; those that have ended are skipped."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def has_survivors(self) -> bool:
        """Wait until all processes have ended; return True if some run on after ``PATIENCE_S``."""
        deadline = time.monotonic() + PATIENCE_S
        while self.code is None or self.processes():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    def said(self, word: str) -> bool:
        """Whether this attempt has printed a word."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return word in file.read().decode(errors="replace")

    def _environments(self) -> Iterator[tuple[int, list[bytes]]]:
        """The process ids of all that are running, ascending, and the environment of each."""
        for pid in sorted(int(path.name) for path in _PROC.glob("[0-9]*")):
            with suppress(OSError):  # it has ended, or belongs to another user
                words = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
                if self._token in words:
                    yield pid, words


def _activity(folder: RunDir) -> list[tuple[int, int]]:
    """The sizes and times of the history, the log and the checkpoints; any change is progress."""
    paths = (folder.history, folder.log, folder.checkpoints)
    stats = [path.stat() if path.exists() else None for path in paths]
    return [(0, 0) if stat is None else (stat.st_size, stat.st_mtime_ns) for stat in stats]


def committed(folder: RunDir) -> int:
    """The round of the newest committed checkpoint; -1 if there is none."""
    return max((int(path.name) for path in committed_folders(folder.checkpoints)), default=-1)


class RunBits(NamedTuple):
    """The model, states and log of a finished run."""

    arrays: Mapping[str, NDArray[Any]]
    """The model ``x``, the ids of the clients with a state, and every field of their states."""
    log: list[dict[str, Any]]
    """The lines of the log, without measured times."""

    def differences(self, other: "RunBits") -> list[str]:
        """The names of the arrays, and of the log, that differ in any bit: 0 is not -0."""
        ours, others = (
            {name: (a.dtype, a.shape, a.tobytes()) for name, a in bits.arrays.items()}
            for bits in (self, other)
        )
        found = [name for name in {**ours, **others} if ours.get(name) != others.get(name)]
        return found + ["log.jsonl"] * (self.log != other.log)


def outcome(folder: RunDir) -> RunBits:
    """Read the newest checkpoint and the log of a run.

    Raises:
        StoreError: a file is damaged.
    """
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "F.npz")
        export(folder.root, round=None, npz=path, state_dict=None, clients=True)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    log = LogReader(folder.log).read()
    return RunBits(arrays, [{k: v for k, v in entry.items() if not measured(k)} for entry in log])
