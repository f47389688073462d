"""Find which runs of a sweep are to be started, resumed or skipped, from their directories."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple

from rich.box import ASCII2
from rich.table import Table

from hpcfl.errors import JobError
from hpcfl.io import regular
from hpcfl.io.atomic import write_file
from hpcfl.io.files import present
from hpcfl.io.table import render_tables
from hpcfl.io.threads import map_in_threads
from hpcfl.io.words import counted
from hpcfl.runs.branches import read_branches
from hpcfl.runs.history import ended_early, last_outcome
from hpcfl.runs.job_file.resume_rules import PLACES, ending_fingerprint, is_mutable
from hpcfl.runs.job_file.settings import OF_SCORES, changed, flatten
from hpcfl.runs.job_file.yaml_file import (
    as_override,
    as_shell_word,
    as_yaml,
    in_own_run,
    replace_kept,
)
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader
from hpcfl.runs.manifest import committed
from hpcfl.runs.record import read_record
from hpcfl.runs.sweep_log import PlaceInSweep
from hpcfl.start.components.choose_executor import LEAST_EQUAL_SIZE
from hpcfl.start.load_run import load_run
from hpcfl.tools.sweep.grid import Point, Sweep

Action = Literal["start", "resume", "skip"]


class PendingRun(NamedTuple):
    """A point, and whether its run is to be started, resumed or skipped."""

    point: Point
    folder: RunDir
    action: Action
    done: int
    """Rounds in its newest checkpoint, or of a finished run that has none any more."""
    changes: tuple[str, ...] = ()
    """Of a run that is resumed, the settings that are new: more rounds, other paths of its data."""


def pending_runs(sweep: Sweep, root: Path) -> list[PendingRun]:
    """Decide for every point, from its directory, whether its run is started, resumed or skipped.

    Raises:
        JobError: a directory holds a run of another job, or one that is alive.
        StoreError: a file of a run is damaged.
    """
    runs = [_entry(point, RunDir(root / point.name)) for point in sweep.points]
    begun = [run.folder for run in runs if present(run.folder.job)]
    map_in_threads(RunDir.require_unlocked, begun)
    return runs


def write_jobs(runs: Sequence[PendingRun]) -> None:
    """Write the job file of each run that has not the same already.

    Its first lines have the place in the grid, which is that of the run in a report, and the
    labels, by which a report calls it.

    A run is started from this file, not from the base job and the sweep, which the user may edit
    while the sweep is running.

    Raises:
        DiskError: the disk is full or fails.
    """
    for run in runs:
        path = job_of(run.folder)
        place = PlaceInSweep(run.point.number, run.point.axes)
        content = place.head() + as_yaml(run.point.loaded.tree)
        if not present(path) or regular.read(path) != content.encode():
            write_file(path, content.encode())


def job_of(folder: RunDir) -> Path:
    """The path of a run's checked job, next to its directory."""
    return folder.root.with_name(f"{folder.root.name}.yaml")


def runs_table(runs: Sequence[PendingRun]) -> str:
    """A table of the runs, with the action and the overrides of each."""
    made = Table("run", "to do", "overrides", box=ASCII2)
    for point, _, action, done, *_ in runs:
        action_text = {
            "start": "start",
            "resume": f"resume from {done}",
            "skip": "nothing, finished",
        }
        made.add_row(point.name, action_text[action], "  ".join(point.overrides))
    finished = sum(todo.action == "skip" for todo in runs)
    count = f"{counted(len(runs), 'run')}, {finished} of them finished"
    return "\n".join([render_tables(made, width=10_000), count])


def _entry(point: Point, folder: RunDir) -> PendingRun:
    if not present(folder.job):
        return PendingRun(point, folder, "start", 0)
    read_record(folder.root)  # for its error message, if the file is damaged
    before, now = _settings(point, folder)
    branches = read_branches(folder.branches)
    if branches:
        raise JobError(
            f"{folder.root}: holds no run of the sweep, but a {branches[-1]}; move that directory "
            "away, or choose another root with --out"
        )
    kept = committed(folder.checkpoints)
    rounds = point.loaded.job.rounds
    if kept:
        done = kept[-1].round
        ended = kept[-1].ended.get("by") == ending_fingerprint(now)
    else:  # the checkpoints of a finished run may have been deleted to save space
        log = LogReader(folder.log).read()
        done = int(log[-1]["round"]) if log else 0
        ended = ended_early(done, last_outcome(folder.history_entries()))
        if not done or (done != rounds and not ended):
            done, ended = 0, False
            folder.refuse_log_without_checkpoint()
    action: Action = "resume" if kept else "start"
    if done == rounds or (ended and before["rounds"] == rounds):
        action = "skip"
    _require_same_job(PendingRun(point, folder, action, done), before, now)
    new = [key for key, _, _ in changed(before, now) if key in now] if kept else []
    asked = tuple(as_override(key, now[key]) for key in new)
    return PendingRun(point, folder, action, done, asked)


def _settings(point: Point, folder: RunDir) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flat settings of the run in the directory, and those of the point, to be compared."""
    # The run has copies of the files of another run that the job names.
    before, now = (
        flatten(replace_kept(loaded.tree, in_own_run))
        for loaded in (load_run(folder), point.loaded)
    )
    if point.loaded.job.data.population is None:
        # Defaults that were resolved from the data are unknown before it is loaded.
        unresolved = [key for key in now if key.startswith("algorithm.") and now[key] is None]
        now |= {key: before[key] for key in unresolved if key in before}
    # A run has found the defaults of these before round 1.
    now |= {key: before[key] for key in OF_SCORES if now.get(key, "") is None and key in before}
    # A run has settled these before round 1, too.
    if point.loaded.job.executor == "auto":
        now |= {key: before[key] for key in ("executor", "block_size")}
    elif now["block_size"] is None and (before["block_size"] or 0) >= LEAST_EQUAL_SIZE:
        now["block_size"] = before["block_size"]  # or of another job: the start compares
    return before, now


def _require_same_job(run: PendingRun, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse a directory whose run is not that of the point, and cannot become it by a resume.

    A resume may be given other paths of the inputs, since it compares their digests, and other
    values of settings on which no finished round depended.

    Args:
        run: what would be done with it.
        before: the flat settings of the run in the directory.
        now: those of the point.

    Raises:
        JobError: the directory holds a run of another job.
    """
    root, where, rounds = run.folder.root, run.point.file.where, run.point.loaded.job.rounds
    free = run.folder.is_unbegun or (run.action == "resume" and run.done < rounds)
    # A finished run with checkpoints gets new paths of its data from the user, by `hpcfl resume`.
    settled = run.action == "skip" and run.folder.has_checkpoint
    differing = [
        change
        for change in changed(before, now)
        if not (change[0] in PLACES and not settled)
        and not (free and all(is_mutable(change[0], job) for job in (before, now)))
    ]
    if not differing:
        return
    key, found, wanted = differing[0]
    if key == "rounds" and run.done > rounds:
        raise JobError(
            f"{where(('rounds',))}: rounds: found {rounds}, but {run.done} are done in {root}; "
            f"give rounds={run.done} or more"
        )
    at = where(tuple(key.split(".")))
    if key in PLACES and key in now:
        raise JobError(
            f"{at}: {key} is {found} in {root}, {wanted} here; if the data moved, say so to that "
            f"run: `hpcfl resume {quote(str(root))} {as_shell_word(key, now[key])}`"
        )
    more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
    raise JobError(
        f"{at}: {root} holds a run of another job: {key} is {found} there, {wanted} here{more}; "
        "choose another root with --out"
    )
