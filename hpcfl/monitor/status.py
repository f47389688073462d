"""Tell how far a run is, from its directory, without disturbing it."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from hpcfl.comm.heartbeat import Heartbeat, read_newest, read_report
from hpcfl.errors import DiskError, JobError, StoreError, one_line
from hpcfl.io.files import present, readable
from hpcfl.report import timing
from hpcfl.report.collect import Found, find_runs, state, unbegun
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.manifest import MANIFEST, committed_folders
from hpcfl.run_dir.record import RunRecord, read_run, with_history

TITLES = {
    "train_objective": "objective",
    "test_loss": "test loss",
    "test_accuracy": "accuracy",
    "test_top5_accuracy": "top 5",
    "client_accuracy_mean": "clients",
    "local_model_accuracy_mean": "own models",
}
RECENT = 100  # rounds whose pace is the run's
LEAST = 0.001  # share of the time that is worth a word
LATE_S = 30.0  # a rank beats every 5 s or more often: one that has not for so long is named


def status(root: Path) -> str:
    """A few lines about a run, alive or not; of a folder, a line for each run below it.

    Raises:
        JobError: the directory holds no run.
        StoreError: a file of the run is damaged.
    """
    folder = RunDir(root)
    with readable(root):
        found = find_runs(root)
        if found.runs and root not in found.runs:
            return _many(root, found)
        folder.require()
        history = _history(folder)
        run = with_history(read_run(root), history)
        alive = folder.is_locked()
        lines = list(_lines(folder, run, history, alive=alive))
    return "\n".join(f"{title:<11} {text}" for title, text in lines)


def _many(root: Path, found: Found) -> str:
    """A line for each of several runs, and how many are in each state."""
    states, lines = Counter[str](), []
    diverged = 0
    for path, failed in found.runs.items():
        state, text, marked = _one(RunDir(path), path.relative_to(root), failed=failed)
        states[state] += 1
        diverged += marked
        lines.append(f"{state:<12} {text}")
    told = ", ".join(f"{count} {state}" for state, count in states.items())
    told += f"; {diverged} of them diverged, with finite numbers" if diverged else ""
    return "\n".join([*lines, *found.unreadable, f"{len(found.runs)} runs: {told}"])


def _one(folder: RunDir, name: Path, *, failed: bool) -> tuple[str, str, bool]:
    """The state of one of several runs, how far it is, and whether finite numbers diverged."""
    try:
        with readable(folder.root):
            if not present(folder.job):
                return unbegun(failed=failed), f"{'-':>6}       {name}", False
            run = with_history(read_run(folder.root), _history(folder))
            alive = folder.is_locked()
    except (JobError, DiskError) as e:  # of one run: the others are told all the same
        return "damaged", str(e), False
    found = state(run, alive=alive, failed=failed)
    marked = run.divergence is not None and found != "diverged"
    mark = "  (diverged)" if marked else ""
    return found, f"{run.done:>6} of {run.rounds}  {name}{mark}", marked


def _lines(
    folder: RunDir, run: RunRecord, history: Sequence[Mapping[str, Any]], *, alive: bool
) -> Iterable[tuple[str, str]]:
    yield from _standing(folder, run, alive=alive)
    yield from _speed(run, alive=alive)
    beats = read_newest(folder.ranks) if alive else []
    if beats:
        yield "ranks", _ranks(beats, time.time())
    yield from _scores(run)
    yield "checkpoint", newest(folder.checkpoints)
    yield "on disk", on_disk(folder)
    for entry in history:
        if "branch_of" in entry:
            yield "branch", f"of {entry['branch_of']} at round {entry['round']}"
    for start in [entry for entry in history if "session" in entry][-1:]:
        yield "last start", f"{start['time']} from round {start['round']}, {start['ranks']} rank(s)"
        known = ("hpcfl", "git", "python", "torch", "numpy", "h5py", "mpi4py", "processor")
        yield "versions", ", ".join(f"{name} {start[name]}" for name in known if start.get(name))


def _standing(folder: RunDir, run: RunRecord, *, alive: bool) -> Iterable[tuple[str, str]]:
    """Its state, how it ended, and how to resume it."""
    now = state(run, alive=alive)
    yield "run", f"{run.path}: {run.algorithm}, {now}"
    if now == "not running":
        yield (
            "ended",
            one_line(read_report(folder.ranks))
            or "without a message: it was killed, its node was lost, or another rank than 0 "
            "failed; see what the run printed",
        )
    elif run.outcome and now == run.outcome.ending and run.outcome.message:
        yield "ended", run.outcome.message
    if run.divergence:
        yield "diverged", str(run.divergence)
    kept = [int(found.name) for found in committed_folders(folder.checkpoints)]
    if now in ("not running", "stopped", "failed"):
        again = f"hpcfl resume {run.path}"
        yield "resume", again if kept else f"no checkpoint: hpcfl run JOB --out {run.path}"
    elif now == "finished" and kept[-1:] != [run.done]:
        yield (
            "warning",
            f"the log has {run.done} rounds, but "
            + (f"the newest checkpoint is of round {kept[-1]}" if kept else "no checkpoint is left")
            + ": later ones were deleted",
        )


def _scores(run: RunRecord) -> Iterable[tuple[str, str]]:
    """Its newest losses and accuracies, and its best."""
    losses = run.curve("train_loss")
    if losses:
        yield "train loss", f"{losses[-1][1]:.4g}"
    for key, title in TITLES.items():
        if run.scores[key]:
            at, score = run.scores[key][-1]
            yield title, f"{score:.4g} after round {at}{_worst(run, key)}"
    best = run.best or run.lowest
    if best:
        yield "best", f"{'accuracy' if run.best else 'loss'} {best[1]:.4g} after round {best[0]}"


def _speed(run: RunRecord, *, alive: bool) -> Iterable[tuple[str, str]]:
    """How far it is, and how fast it went lately."""
    lately = recent(run)
    speed = timing.pace(lately)
    left = f", {time_left(run, speed)} left" if speed else ""
    yield "rounds", f"{run.done} of {run.rounds}" + (left if alive else "")
    if speed:
        over = f"{speed:.3g} rounds/s over the last {min(RECENT, run.done)}"
        batches, states = timing.rate(lately, "data_s"), timing.rate(lately, "store_s")
        yield (
            "pace",
            (f"{over}, {batches or 0:.1%} of the time for batches, {states or 0:.1%} for states"),
        )
    parts = sorted(timing.shares(lately).items(), key=lambda part: -part[1])
    if parts:
        yield "time", ", ".join(f"{name} {share:.1%}" for name, share in parts if share >= LEAST)
    slowest = timing.imbalance(lately)
    if slowest is not None:
        yield "imbalance", f"the busiest rank worked {slowest:.2f} times as long as the mean one"


def _worst(run: RunRecord, key: str) -> str:
    """The worst decile of a score that is a mean over clients."""
    worst = key.replace("_mean", "_worst_decile")
    return "" if worst == key else f", {run.last(worst):.4g} in the worst tenth"


def _ranks(beats: Sequence[Heartbeat], now: float) -> str:
    """Where the ranks are, which is where the last of them is, and whether all are heard of."""
    last = min(beats, key=lambda beat: (beat.waits, beat.calls))
    oldest = max(beats, key=lambda beat: beat.age(now))
    late = f": {oldest.who}" if oldest.age(now) > LATE_S else ""
    return f"{len(beats)}: {last.where}, oldest heartbeat {oldest.age(now):.0f} s ago{late}"


def recent(run: RunRecord) -> Sequence[Mapping[str, Any]]:
    """The lines of the last rounds."""
    return [line for line in run.log[-RECENT:] if line["round"]]


def time_left(run: RunRecord, speed: float) -> timedelta:
    """Until all rounds are done, at so many a second."""
    return timedelta(seconds=round((run.rounds - run.done) / speed))


def newest(checkpoints: Path) -> str:
    """The last checkpoint, and how old it is."""
    for folder in reversed(committed_folders(checkpoints)):
        with suppress(FileNotFoundError):  # pruned meanwhile
            written = (folder / MANIFEST).stat().st_mtime
            age = timedelta(seconds=max(0, round(time.time() - written)))
            return f"round {int(folder.name)}, {age} ago"
    return "none yet"


def on_disk(folder: RunDir) -> str:
    """What a run takes on the disk."""
    return f"{_disk(folder.checkpoints)} checkpoints, {_disk(folder.stores)} stores"


def _disk(root: Path) -> str:
    """What the files below ``root`` take on the disk."""
    taken = 0
    for folder, _, names in os.walk(root, onerror=_unless_gone):
        for name in names:
            with suppress(FileNotFoundError):
                taken += Path(folder, name).stat().st_blocks * 512
    return decimal(taken)


def _unless_gone(error: OSError) -> None:
    """Raise what keeps a folder from being listed, unless it was pruned meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _history(folder: RunDir) -> list[dict[str, Any]]:
    """The history, if its entries say what is shown of them."""
    entries = folder.history_entries()
    for number, entry in enumerate(entries, 1):
        needed = ("time", "round", "ranks") if "session" in entry else ("time", "round")
        absent = [key for key in needed if key not in entry]
        if absent:
            raise StoreError(f"{folder.history}:{number}: found no {absent[0]!r}: of no start")
    return entries
