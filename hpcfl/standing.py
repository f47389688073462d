"""The runs below directories, and where they and the sweeps that they belong to stand."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import JobError
from hpcfl.records import RunRecord, read_run
from hpcfl.rundir import SWEEP_LOG, RunDir

_EVENT = re.compile(r"[\d-]{10} [\d:]{8} (\w+) +([^ :]+): (.*)")
_PLAN = re.compile(r"(\d+) runs to do, (\d+) finished before")


class Standing(NamedTuple):
    """Runs, and what a table of them does not show."""

    runs: Sequence[RunRecord]
    notes: Sequence[str]
    """A line for each sweep: how many of its points are finished, failed, not begun."""


class _Diary(NamedTuple):
    """What a sweep's sweep.log says."""

    points: int
    failed: dict[str, str]
    """By the points' names, why."""


def read_standing(paths: Sequence[Path]) -> Standing:
    """Read run directories, sweeps, and folders of them.

    Raises:
        JobError: there is no run in one of them.
        StoreError: a file of a run is damaged.
    """
    runs: list[RunRecord] = []
    notes: list[str] = []
    for path in paths:
        folders = _run_folders(path)
        for root in dict.fromkeys(folder.parent for folder in folders):
            inside = [folder for folder in folders if folder.parent == root]
            diary = _diary(root / SWEEP_LOG)
            read = [_read(folder, diary.failed if diary else {}) for folder in inside]
            runs += read
            if diary and root != path.parent:  # asked for as a whole
                notes += _told(root, read, diary)
    return Standing(runs, notes)


def _run_folders(path: Path) -> list[Path]:
    """A run directory itself, or those in a sweep or in a folder of runs and sweeps."""
    if (path / "job.yaml").is_file():
        return [path]
    found = sorted(job.parent for job in path.glob("*/job.yaml"))
    found += sorted(
        job.parent
        for job in path.glob("*/*/job.yaml")
        if not (job.parent.parent / "job.yaml").is_file()
    )
    return found or [path]


def _read(folder: Path, failed: dict[str, str]) -> RunRecord:
    run = read_run(folder)
    if run.finished:
        return run
    alive = RunDir(folder).held()
    fate = "alive" if alive else "failed" if folder.name in failed else "unfinished"
    return replace(run, fate=fate)


def _diary(path: Path) -> _Diary | None:
    """The log of a sweep, or None where there is none.

    Raises:
        JobError: it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as e:
        raise JobError(f"{path}: cannot be read: {e.strerror}") from e
    points, failed = 0, dict[str, str]()
    for event, name, text in (found.groups() for found in map(_EVENT.fullmatch, lines) if found):
        failed.pop(name, None)
        if event == "failed":
            failed[name] = text
        elif event == "plan" and (plan := _PLAN.match(text)):
            points = max(points, int(plan[1]) + int(plan[2]))  # parts of it may have their own
    return _Diary(points, failed)


def _told(root: Path, runs: Sequence[RunRecord], diary: _Diary) -> list[str]:
    states = Counter(run.state for run in runs)
    begun = {run.name for run in runs}
    early = diary.failed.keys() - begun  # they have no run directory yet
    states["failed"] += len(early)
    jobs = {job.stem for job in root.glob("*.yaml")}  # a sweep may write them before the runs
    points = max(diary.points, len(begun | early | jobs))
    states["not begun"] = points - len(begun | early)
    counts = ", ".join(f"{count} {state}" for state, count in states.items() if count)
    shown = early | {run.name for run in runs if run.state == "failed"}
    return [
        f"{root}: {points} runs: {counts}",
        *(f"{root / name}: failed: {why}" for name, why in diary.failed.items() if name in shown),
    ]
