"""The runs below directories, and where they and the sweeps that they belong to stand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcfl.diary import Diary, read_diary
from hpcfl.files import folders_with, present, readable
from hpcfl.records import RunRecord, read_run
from hpcfl.rundir import RunDir


class Standing(NamedTuple):
    """Runs, and what a table of them does not show."""

    runs: Sequence[RunRecord]
    notes: Sequence[str]
    """A line for each sweep: how many of its points are finished, failed, not begun."""


def read_standing(paths: Sequence[Path]) -> Standing:
    """Read run directories, sweeps, and folders of them.

    Raises:
        JobError: there is no run in one of them.
        StoreError: a file of a run is damaged.
    """
    runs: list[RunRecord] = []
    notes: list[str] = []
    for path in paths:
        with readable(path):
            folders = _run_folders(path)
        for root in dict.fromkeys(folder.parent for folder in folders):
            inside = [folder for folder in folders if folder.parent == root]
            diary = read_diary(root)
            read = [_read(folder, diary.failed if diary else {}) for folder in inside]
            runs += read
            if diary and root != path.parent:  # asked for as a whole
                notes += _told(root, read, diary)
    return Standing(runs, notes)


def state(run: RunRecord, *, alive: bool, failed: bool = False) -> str:
    """Whether it is alive, finished, failed or not running."""
    if alive or run.finished:
        return "alive" if alive else "finished"
    return "failed" if failed else "not running"


def unbegun(*, failed: bool) -> str:
    """The state of a run that has no directory yet."""
    return "failed" if failed else "not begun"


def _run_folders(path: Path) -> list[Path]:
    """A run directory itself, or those in a sweep or in a folder of runs and sweeps."""
    if present(path / "job.yaml"):
        return [path]
    if not path.is_dir():
        return [path]
    found = folders_with(path, "job.yaml")
    for folder in sorted(path.iterdir()):
        if folder not in found and folder.is_dir():
            found += folders_with(folder, "job.yaml")
    return found or [path]


def _read(folder: Path, failed: Mapping[str, str]) -> RunRecord:
    with readable(folder):
        run = read_run(folder)
        if run.finished:
            return run
        alive, fell = RunDir(folder).held(), folder.name in failed
    return replace(run, fate=state(run, alive=alive, failed=fell))


def _told(root: Path, runs: Sequence[RunRecord], diary: Diary) -> list[str]:
    states = Counter(run.state for run in runs)
    begun = {run.name for run in runs}
    early = diary.failed.keys() - begun  # they have no run directory yet
    states["failed"] += len(early)
    jobs = {job.stem for job in root.glob("*.yaml")}  # a sweep may write them before the runs
    points = max(diary.points, len(begun | early | jobs))
    states["not begun"] = points - len(begun | early)
    counts = ", ".join(f"{count} {word}" for word, count in states.items() if count)
    shown = early | {run.name for run in runs if run.state == "failed"}
    return [
        f"{root}: {points} runs: {counts}",
        *(f"{root / name}: failed: {why}" for name, why in diary.failed.items() if name in shown),
    ]
