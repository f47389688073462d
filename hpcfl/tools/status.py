"""Describe how far a run is, from its directory, without disturbing it."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from hpcfl.errors import DiskError, JobError, one_line
from hpcfl.io.files import present, readable
from hpcfl.io.heartbeat import Heartbeat, read_newest, read_report
from hpcfl.io.threads import map_in_threads
from hpcfl.io.words import counted
from hpcfl.runs.branches import Branch
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import MANIFEST, committed_folders
from hpcfl.runs.record import RunReader, RunRecord
from hpcfl.runs.run_score import Quantity
from hpcfl.runs.score_names import SCORES
from hpcfl.tools.report import timing
from hpcfl.tools.report.collect import FoundRuns, find_runs, number_of_runs, state_without_directory
from hpcfl.tools.report.columns import duration

RECENT = 100  # rounds over which speeds and shares of the time are taken
LATE_S = 30.0  # a rank writes a heartbeat every 5 s or more often: older ones are marked
DISK_S = 10.0  # between two sums of file sizes, which walk through all folders of a run
EVERY_S = 1.0  # between two pages that follow a run
_WORST = "_worst_decile"  # ends the keys that are shown beside the mean
LEAST = 0.001  # smaller shares of the time are left out


def status(root: Path) -> str:
    """A few lines about a run, alive or not; of a folder, a line for each run below it.

    Raises:
        JobError: the directory holds no run.
        StoreError: a file of the run is damaged.
    """
    return "\n".join(_View(root).lines())


def follow(root: Path, console: Console) -> None:
    """Show the status on a terminal, a new one every second, until Ctrl-C.

    Raises:
        JobError: the directory holds no run, or no longer does.
        StoreError: a file of the run is damaged.
    """
    view = _View(root)

    def page() -> Text:
        lines = view.lines(console.height)
        return Text("\n".join(lines), no_wrap=view.of_folder, overflow="fold")

    try:
        live = Live(page(), console=console, screen=True, auto_refresh=False)
        with suppress(KeyboardInterrupt):
            try:  # not by `with`: Ctrl-C may come while the alternate screen is entered
                live.start(refresh=True)
                while True:
                    time.sleep(EVERY_S)
                    live.update(page(), refresh=True)
            finally:
                live.stop()
    except FileNotFoundError as error:
        raise JobError(f"{root}: the run has gone ({error.filename}); name another") from error


class _View:
    """The status of a run or folder, again and again; only what changed is parsed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._readers: dict[Path, RunReader] = {}
        self._sizes, self._sizes_due = "", 0.0
        self.of_folder = False
        """Whether there is a line for each of several runs."""

    def lines(self, height: int | None = None) -> list[str]:
        """The status as it is now; of a folder at most so many lines, runs that are alive first."""
        with readable(self._root):
            found = find_runs(self._root)
            self.of_folder = bool(found.runs) and self._root not in found.runs
            if self.of_folder:
                rows, rest = self._folder(found)
                room = len(rows) if height is None else max(1, height - len(rest) - 1)
                if len(rows) > room:
                    rows.sort(key=lambda row: not row.startswith("alive"))
                    rest = [f"and {len(rows) - room} more", *rest]
                return [*map(one_line, [*rows[:room], *rest])]
            RunDir(self._root).require()
            titled = list(describe(self._read(self._root), self._disk_sizes()))
        width = max(11, *(len(title) for title, _ in titled))
        return [one_line(f"{title:<{width}} {text}") for title, text in titled]

    def _read(self, root: Path, *, failed: bool = False) -> RunRecord:
        """Read a run as it is now.

        Raises:
            JobError: the directory holds no run.
            StoreError: a file of the run is damaged.
            DiskError: the disk fails.
        """
        reader = self._readers.setdefault(root, RunReader(root))
        # Before its log: of a run that is dead by then, the log is complete.
        run = reader.read(alive=RunDir(root).is_locked(), failed=failed)
        if run.unread:
            raise run.unread
        return run

    def _disk_sizes(self) -> str:
        """Bytes of the run's checkpoints and stores on the disk, as of DISK_S ago at most."""
        if time.monotonic() >= self._sizes_due:
            folder = RunDir(self._root)
            self._sizes = f"{_disk(folder.checkpoints)} checkpoints, {_disk(folder.stores)} stores"
            self._sizes_due = time.monotonic() + DISK_S
        return self._sizes

    def _folder(self, found: FoundRuns) -> tuple[list[str], list[str]]:
        """A line for each run; and lines about what cannot be read, and how many runs there are."""
        states, rows = Counter[str](), []
        diverged = 0

        def line(path: Path) -> tuple[str, str, bool]:
            return self._run_line(path, failed=found.runs[path])

        for state, text, marked in map_in_threads(line, found.runs):
            states[state] += 1
            diverged += marked
            rows.append(f"{state:<12} {text}")
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        counts += f"; {diverged} of them diverged, with finite numbers" if diverged else ""
        return rows, [*found.unreadable, f"{number_of_runs(len(found.runs))}: {counts}"]

    def _run_line(self, path: Path, *, failed: bool) -> tuple[str, str, bool]:
        """The state of one of several runs, how far it is, and whether finite numbers diverged."""
        name = path.relative_to(self._root)
        try:
            with readable(path):
                if not present(RunDir(path).job):
                    return state_without_directory(failed=failed), f"{'-':>6}       {name}", False
                run = self._read(path, failed=failed)
        except (JobError, DiskError) as e:  # of this run: the others are listed all the same
            return "damaged", str(e), False
        marked = run.divergence is not None and run.state != "diverged"
        mark = "  (diverged)" if marked else ""
        left = f", {time_left} left" if (time_left := _time_left(run)) else ""
        return run.state, f"{run.done:>6} of {run.rounds}  {name}{left}{mark}", marked


def describe(run: RunRecord, sizes: str) -> Iterator[tuple[str, str]]:
    """Titles and texts about a run.

    Args:
        run: read with its history.
        sizes: of its files, in words.
    """
    folder = RunDir(run.path)
    yield from _state(run)
    yield from _speed(run)
    heartbeats = read_newest(folder.ranks) if run.alive else []
    if heartbeats:
        yield "ranks", _ranks(heartbeats, time.time())
    yield from _scores(run)
    if not folder.is_record:
        yield "checkpoint", _newest_checkpoint(folder.checkpoints)
        yield "on disk", sizes
    for entry in run.history:
        if "branch_of" in entry:
            text = f"of {entry['branch_of']} at round {entry['round']}"
            if "changes" in entry:
                text = str(Branch.parse(entry)).removeprefix("branch ")
            yield "branch", text
    for start in [entry for entry in run.history if "session" in entry][-1:]:
        yield "last start", f"{start['time']} from round {start['round']}, {start['ranks']} rank(s)"
        known = ("hpcfl", "git", "python", "torch", "numpy", "h5py", "mpi4py", "processor")
        yield "versions", ", ".join(f"{name} {start[name]}" for name in known if start.get(name))


def _state(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Its state, how it ended, and how to resume it."""
    folder, state = RunDir(run.path), run.state
    record = folder.is_record
    yield "run", f"{run.path}: {run.algorithm}, {state}"
    if record:
        yield "record", "without its models: it can be shown, not resumed"
    elif state == "not running":
        yield (
            "ended",
            one_line(read_report(folder.ranks))
            or "without a message: it was killed, its node was lost, or its disk was full; see "
            "what the run printed",
        )
    elif run.outcome and state == run.outcome.ending and run.outcome.message:
        yield "ended", run.outcome.message
    if run.divergence:
        yield "diverged", run.divergence
    if record:
        return
    kept = [int(found.name) for found in committed_folders(folder.checkpoints)]
    if state in ("not running", "stopped", "failed"):
        if kept:
            yield "resume", f"hpcfl resume {run.path}"
        elif run.log:
            yield "resume", "no checkpoint: put one back, or remove the directory to start again"
        else:
            yield "resume", f"no checkpoint: hpcfl run JOB --out {run.path}"
    elif state == "finished" and kept[-1:] != [run.done]:
        yield (
            "warning",
            f"the log has {counted(run.done, 'round')}, but "
            + (f"the newest checkpoint is of round {kept[-1]}" if kept else "no checkpoint is left")
            + ": later ones were deleted",
        )


def _speed(run: RunRecord) -> Iterator[tuple[str, str]]:
    """How many rounds are done, the recent speed, and how the time was shared out."""
    lines, left = _recent(run), _time_left(run)
    left_text = f", {left} left" if left is not None else ""
    yield "rounds", f"{run.done} of {run.rounds}{left_text}"
    speed = timing.pace(lines)
    if speed:
        over = f"{speed:.3g} rounds/s over the last {min(RECENT, run.done)}"
        batches, states = timing.rate(lines, "data_s"), timing.rate(lines, "store_s")
        yield (
            "pace",
            f"{over}, {batches or 0:.1%} of the time for batches, {states or 0:.1%} for states",
        )
    if run.simulated:
        yield "simulated", f"{duration(run.simulated[run.done])} of the devices so far"
    phases = sorted(timing.shares(lines).items(), key=lambda phase: -phase[1])
    if phases:
        yield "time", ", ".join(f"{name} {share:.1%}" for name, share in phases if share >= LEAST)
    imbalance = timing.imbalance(lines)
    if imbalance is not None:
        slowest = timing.slowest_rank(lines)
        which = f"; rank {slowest[0]} was it in {slowest[1]:.0%} of the rounds" if slowest else ""
        ratio = f"the busiest rank worked {imbalance:.2f} times as long as the mean one"
        yield "imbalance", ratio + which


def _recent(run: RunRecord) -> Sequence[Mapping[str, Any]]:
    """The log's lines of the last RECENT rounds."""
    return [line for line in run.log[-RECENT:] if line["round"]]


def _time_left(run: RunRecord) -> timedelta | None:
    """Time until the last round at the present speed; None if it is not alive."""
    speed = timing.pace(_recent(run)) if run.alive else None
    return timedelta(seconds=round((run.rounds - run.done) / speed)) if speed else None


def _scores(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Its newest losses and accuracies, and its best."""
    if own := run.own_models:
        counted = (
            "scored as personal; other scores are of x alone"
            if run.personal
            else "which is not scored; scores are of x alone"
        )
        yield "trains", f"each client's own model, {counted}{own.of_x}"
    losses = run.curve("train_loss")
    if losses:
        yield "train loss", f"{losses[-1][1]:.4g}"
    for key, known in SCORES.items():
        if known.title and run.scores[key] and not key.endswith(_WORST):
            round, score = run.scores[key][-1]
            title = known.title.replace("\n", " ")
            yield title, f"{score:.4g} after round {round}{_worst_decile(run, key)}"
    for key in run.metric_keys:
        if run.scores[key]:
            round, score = run.scores[key][-1]
            yield key, f"{score:.4g} after round {round}"
    name: Quantity = "accuracy" if run.choice("accuracy") else "loss"
    chosen, tested = run.choice(name), run.best if name == "accuracy" else run.lowest
    key = run.score_key(name, run.chosen_on).removeprefix("test_").replace("_", " ")
    if chosen and run.chosen_on == "test":
        where = own.examples if own and run.personal else "the test set"
        yield "best", f"{key} {chosen[1]:.4g} after round {chosen[0]}, chosen on {where}"
    elif chosen:
        test = run.score_key(name).replace("_", " ")
        there = f", where the {test} is {tested[1]:.4g}" if tested else ""
        yield "best", f"{key} {chosen[1]:.4g} after round {chosen[0]}{there}"


def _worst_decile(run: RunRecord, key: str) -> str:
    """The worst decile of a score that is a mean over clients."""
    worst = key.replace("_mean", _WORST)
    return "" if worst == key else f", {run.last(worst):.4g} in the worst decile"


def _ranks(heartbeats: Sequence[Heartbeat], now: float) -> str:
    """The phase of the rank that is least far, and the rank whose heartbeat is the oldest."""
    last = min(heartbeats, key=lambda beat: (beat.waits, beat.calls))
    oldest = max(heartbeats, key=lambda beat: beat.age(now))
    late = f": {oldest.who}" if oldest.age(now) > LATE_S else ""
    return f"{len(heartbeats)}: {last.where}, oldest heartbeat {oldest.age(now):.0f} s ago{late}"


def _newest_checkpoint(checkpoints: Path) -> str:
    """The round and the age of the newest checkpoint."""
    for folder in reversed(committed_folders(checkpoints)):
        with suppress(FileNotFoundError):  # the run has deleted it meanwhile
            written = (folder / MANIFEST).stat().st_mtime
            age = timedelta(seconds=max(0, round(time.time() - written)))
            return f"round {int(folder.name)}, {age} ago"
    return "none yet"


def _disk(root: Path) -> str:
    """The size on the disk of the files below ``root``."""
    taken = 0
    for folder, _, names in os.walk(root, onerror=_unless_gone):
        for name in names:
            with suppress(FileNotFoundError):
                # Blocks, not the size: a sparse or compressed file takes less of the disk.
                taken += Path(folder, name).stat().st_blocks * 512
    return decimal(taken)


def _unless_gone(error: OSError) -> None:
    """Raise the error, unless the run has deleted the folder meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error
