"""Find which runs of a sweep are to be started, resumed or skipped, from their directories."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from rich.box import ASCII2
from rich.table import Table

from hpcfl.errors import JobError
from hpcfl.io.atomic import write_file
from hpcfl.io.files import present
from hpcfl.io.table import render_tables
from hpcfl.job.resume_rules import PLACES, is_mutable
from hpcfl.job.settings import changed, flatten
from hpcfl.job.yaml_file import in_own_run, replace_kept
from hpcfl.run_dir.branches import read_branches
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.load_job import load_run
from hpcfl.run_dir.manifest import committed
from hpcfl.run_dir.record import read_job
from hpcfl.sweep.grid import Point, Sweep

Action = Literal["start", "resume", "skip"]


class PendingRun(NamedTuple):
    """A point, and whether its run is to be started, resumed or skipped."""

    point: Point
    folder: RunDir
    action: Action
    done: int
    """Rounds in its newest checkpoint."""
    changes: tuple[str, ...] = ()
    """Of a run that is resumed, the settings that are new: more rounds, other paths of its data."""


def pending_runs(sweep: Sweep, root: Path) -> list[PendingRun]:
    """Decide for every point, from its directory, whether its run is started, resumed or skipped.

    Raises:
        JobError: a directory holds a run of another job, or one that is alive.
        StoreError: a file of a run is damaged.
    """
    return [_entry(point, RunDir(root / point.name)) for point in sweep.points]


def write_jobs(runs: Sequence[PendingRun]) -> list[Path]:
    """Write the job file of each run, and return their paths.

    A run is started from this file, not from the base job and the sweep, which the user may edit
    while the sweep is running.

    Raises:
        DiskError: the disk is full or fails.
    """
    paths = []
    for run in runs:
        content = yaml.safe_dump(run.point.loaded.tree, sort_keys=False).encode()
        write_file(job_of(run.folder), content)
        paths.append(job_of(run.folder))
    return paths


def job_of(folder: RunDir) -> Path:
    """The path of a run's checked job, next to its directory."""
    return folder.root.with_name(f"{folder.root.name}.yaml")


def runs_table(runs: Sequence[PendingRun]) -> str:
    """A table of the runs, with the action and the overrides of each."""
    made = Table("run", "to do", "overrides", box=ASCII2)
    for point, _, action, done, _ in runs:
        action_text = {
            "start": "start",
            "resume": f"resume from {done}",
            "skip": "nothing, finished",
        }
        made.add_row(point.name, action_text[action], "  ".join(point.overrides))
    finished = sum(todo.action == "skip" for todo in runs)
    return f"{render_tables(made, width=10_000)}\n{len(runs)} runs, {finished} of them finished"


def _entry(point: Point, folder: RunDir) -> PendingRun:
    if not present(folder.job):
        return PendingRun(point, folder, "start", 0)
    read_job(folder.root)  # for its error message, if the file is damaged
    # The run has copies of the files of another run that the job names.
    before, now = (
        flatten(replace_kept(loaded.tree, in_own_run))
        for loaded in (load_run(folder), point.loaded)
    )
    if point.loaded.job.data.population is None:
        # Defaults that were resolved from the data are unknown before it is loaded.
        unresolved = [key for key in now if key.startswith("algorithm.") and now[key] is None]
        now |= {key: before[key] for key in unresolved if key in before}
    if point.loaded.job.executor == "auto":  # the run has chosen one before round 1
        now |= {key: before[key] for key in ("executor", "block_size")}
    branches = read_branches(folder.branches)
    if branches:
        raise JobError(
            f"{folder.root}: holds no run of the sweep, but a {branches[-1]}; move that directory "
            "away, or choose another root with --out"
        )
    kept = committed(folder.checkpoints)
    rounds = point.loaded.job.rounds
    finished = bool(kept) and kept[-1].round == rounds
    # A resume may be given other paths of the inputs, since it compares their digests, and other
    # values of settings on which no finished round depended.
    resumed = bool(kept) and kept[-1].round < rounds
    changes = list(changed(before, now))
    differing = [
        change
        for change in changes
        if not (change[0] in PLACES and not finished)
        and not (resumed and all(is_mutable(change[0], job) for job in (before, now)))
    ]
    if differing:
        key, found, wanted = differing[0]
        if key == "rounds" and kept and kept[-1].round > rounds:
            raise JobError(
                f"{point.file.where(('rounds',))}: rounds: found {rounds}, but {kept[-1].round} "
                f"are done in {folder.root}; give rounds={kept[-1].round} or more"
            )
        if key in PLACES and key in now:
            raise JobError(
                f"{point.file.where(tuple(key.split('.')))}: {key} is {found} in {folder.root}, "
                f"{wanted} here; if the data moved, say so to that run: `hpcfl resume "
                f"{folder.root} {key}={now[key]}`"
            )
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise JobError(
            f"{point.file.where(tuple(key.split('.')))}: {folder.root} holds a run of another job: "
            f"{key} is {found} there, "
            f"{wanted} here{more}; choose another root with --out"
        )
    if folder.is_locked():
        raise JobError(f"{folder.root}: a run is alive in this directory; wait for it or stop it")
    if not kept:
        return PendingRun(point, folder, "start", 0)
    action: Literal["skip", "resume"] = "skip" if finished else "resume"
    asked = tuple(f"{key}={json.dumps(now[key])}" for key, _, _ in changes if key in now)
    return PendingRun(point, folder, action, kept[-1].round, asked)
