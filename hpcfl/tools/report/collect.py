"""Find the runs below directories, their state, and the sweeps that they belong to."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import DiskError, StoreError, file_error
from hpcfl.io.atomic import PART
from hpcfl.io.files import READABLE, may_contain, present, readable
from hpcfl.io.regular import read
from hpcfl.io.threads import map_in_threads
from hpcfl.io.words import counted
from hpcfl.runs.job_file.resume_rules import input_places
from hpcfl.runs.layout import RunDir
from hpcfl.runs.names import SWEEP_LOG
from hpcfl.runs.record import RunReader, RunRecord
from hpcfl.runs.sweep_log import Label, SweepEvents, place_in_sweep, read_sweep_log

JOB = "job.yaml"
_SECTIONS = (b"algorithm:", b"diagnostics:", b"checkpoint:", b"store:", b"threads:")  # some of all


class CollectedRuns(NamedTuple):
    """Runs, and notes that belong below a table of them."""

    runs: Sequence[RunRecord]
    notes: Sequence[str]
    """A line for each sweep: how many of its points are finished, failed, not started; and for each
    folder or history that cannot be read."""


class FoundRuns(NamedTuple):
    """The runs in a directory and in the folders below it."""

    runs: Mapping[Path, bool]
    """Directories, and whether the sweep that made them saw them fail last.  Runs of a sweep that
    have not started are among them, without a directory."""
    unreadable: Sequence[str]
    """A line for each entry of a folder that cannot be looked at or listed, and why."""


def find_runs(root: Path) -> FoundRuns:
    """Find the run directories below ``root``, however deep; of a run directory, itself.

    What lies in a run directory belongs to it.  Hidden folders and copies that are not complete are
    left out, and symbolic links are followed to runs and sweeps only, each once: so a search ends
    wherever it begins.

    An entry below ``root`` that cannot be read, such as another user's private folder or a link to
    itself, gets a line in ``unreadable``: the other runs are found all the same.

    Raises:
        StoreError: ``root``, or the log of a sweep, cannot be read.
        DiskError: the disk fails there.
    """
    if present(root / JOB):
        return FoundRuns({root: False}, ())
    runs: dict[Path, bool] = {}
    unreadable: list[str] = []
    seen: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            if not _is_new(folder, seen):
                continue
            below = list(_subfolders(folder, unreadable))
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or never there
            continue
        except OSError as e:
            why = f"{folder}: cannot be listed: {e.strerror or e}; {READABLE}"
            if folder == root:
                raise file_error(e, why, StoreError) from e
            unreadable.append(why)
            continue
        events = read_sweep_log(folder)
        failed = events.failed if events else {}
        # A sweep writes the job files of its runs before it starts them.
        names = _planned(folder) if events else set()
        inside, others = _split_folders(below, names, seen, unreadable)
        names |= inside
        runs |= {folder / name: name in failed for name in sorted(names, key=_with_numbers)}
        waiting += sorted(others, key=lambda path: _with_numbers(path.name), reverse=True)
    return FoundRuns(runs, unreadable)


def _with_numbers(name: str) -> tuple[list[str | float], str]:
    """A key that sorts names by the numbers in them: size5 before size20."""
    parts: list[str | float] = [*re.split(r"(\d+(?:\.\d+)?)", name)]
    parts[1::2] = map(float, parts[1::2])
    return parts, name


def collect_runs(paths: Sequence[Path]) -> CollectedRuns:
    """Read run directories, sweeps, and folders of them.

    The files that a sweep has beside a run, which a pattern of a shell also matches, are left out.
    Inputs with the same content have one path in the settings of all runs.

    Raises:
        JobError: there is no run in one of them.
        StoreError: a file of a run is damaged.
    """
    groups: list[tuple[Path, list[tuple[Path, bool]], Path]] = []
    labels: dict[Path, tuple[Label, ...]] = {}
    notes: list[str] = []
    beside = {Path(f"{path}{end}") for path in paths for end in (".log", ".yaml")}
    for path in paths:
        if path in beside:
            continue
        path = path if path.name else path.absolute()  # the current directory has no name
        found = find_runs(path)
        notes += found.unreadable
        started = {
            folder: failed for folder, failed in found.runs.items() if may_contain(folder, JOB)
        }
        started = started or {path: False}
        for root in dict.fromkeys(folder.parent for folder in started):
            siblings = [item for item in started.items() if item[0].parent == root]
            if (root / SWEEP_LOG).is_file():
                places = dict(zip(started, map_in_threads(place_in_sweep, started), strict=True))
                siblings.sort(key=lambda item: places[item[0]].number)
                labels |= {folder: place.labels for folder, place in places.items()}
            groups.append((root, siblings, path))
    read = iter(map_in_threads(_read, [item for _, siblings, _ in groups for item in siblings]))
    runs: list[RunRecord] = []
    for root, siblings, path in groups:
        found_runs = [replace(next(read), labels=labels.get(item[0], ())) for item in siblings]
        notes += [str(run.unread) for run in found_runs if run.unread]
        runs += found_runs
        # If one run of a sweep was given, the others' states are of no interest.
        events = read_sweep_log(root) if root != path.parent else None
        if events:
            notes += _sweep_notes(root, found_runs, events)
    return CollectedRuns(with_common_paths(runs), notes)


def state_without_directory(*, failed: bool) -> str:
    """The state of a run that has no directory yet."""
    return "failed" if failed else "not started"


def _is_new(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """Add the folder to ``seen``; return whether it was not there yet, under any name."""
    found = folder.stat()
    known = len(seen)
    seen.add((found.st_dev, found.st_ino))
    return len(seen) > known


def _split_folders(
    below: Sequence[Path], known: Set[str], seen: set[tuple[int, int]], unreadable: list[str]
) -> tuple[set[str], list[Path]]:
    """The names of the run directories among folders, and the others that may hold some.

    Args:
        below: folders.
        known: the names of a sweep's runs; errors about these are raised when they are read.
        seen: the folders met before.
        unreadable: gets a line for each other folder that cannot be looked at.
    """
    inside, others = set(), []
    for path in below:
        try:
            # A folder that is removed meanwhile is no folder.
            with readable(path), suppress(FileNotFoundError, NotADirectoryError):
                if present(path / JOB):
                    if _is_new(path, seen):
                        inside.add(path.name)
                elif path.name not in known and _may_hold_runs(path):
                    others.append(path)
        except (StoreError, DiskError) as e:
            if path.name not in known:
                unreadable.append(str(e))
    return inside, others


def _subfolders(folder: Path, unreadable: list[str]) -> Iterator[Path]:
    """The folders in one that may hold runs; a line for each entry that cannot be looked at."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = _is_visible(entry.name) and entry.is_dir()
            except OSError as e:
                unreadable.append(f"{entry.path}: cannot be read: {e.strerror or e}; {READABLE}")
                continue
            if found:
                yield Path(entry.path)


def _is_visible(name: str) -> bool:
    """Whether a folder of this name is neither hidden nor a copy that is being made."""
    return not name.startswith(".") and not name.endswith(PART)


def _may_hold_runs(folder: Path) -> bool:
    """Whether to look for runs in a folder that is none itself."""
    return not folder.is_symlink() or (folder / SWEEP_LOG).is_file()


def _read(started: tuple[Path, bool]) -> RunRecord:
    """Read a run, given its folder and whether its sweep saw it fail last."""
    folder, failed = started
    with readable(folder):
        reader = RunReader(folder)
        run = reader.read()
        if run.finished:  # on a file system without locks, to ask takes seconds
            return run
        return reader.read(alive=RunDir(folder).is_locked(), failed=failed)


def _planned(root: Path) -> set[str]:
    """The names of a sweep's runs by their job files, which have every section of a job.

    The sweep's own file, or a job that it is about, may lie beside them.
    """
    return {
        job.stem
        for job in root.glob("*.yaml")
        if may_contain(root / job.stem, JOB) or _is_whole(job)
    }


def _is_whole(job: Path) -> bool:
    try:
        lines = read(job).split(b"\n")
    except OSError:  # a folder of this name, a link to nothing, or removed meanwhile
        return False
    return all(any(line.startswith(name) for line in lines) for name in _SECTIONS)


def number_of_runs(count: int) -> str:
    """The words "1 run", "2 runs"."""
    return counted(count, "run")


def _sweep_notes(root: Path, runs: Sequence[RunRecord], events: SweepEvents) -> list[str]:
    states = Counter(run.state for run in runs)
    started = {run.name for run in runs}
    early = events.failed.keys() - started  # they have no run directory yet
    states["failed"] += len(early)
    jobs = _planned(root)  # a sweep may write them before the runs
    others = [run.name for run in runs if run.name not in jobs]
    points = max(events.points, len(started | early | jobs))
    states["not started"] = points - len(started | early)
    counts = ", ".join(f"{count} {word}" for word, count in states.items() if count)
    shown = early | {run.name for run in runs if run.state in ("failed", "diverged")}
    return [
        f"{root}: {number_of_runs(points)}: {counts}",
        *(
            [f"{root}: has more runs than the sweep, which wrote no job for {', '.join(others)}"]
            if others and points > events.points > 0
            else []
        ),
        *(f"{root / name}: failed: {why}" for name, why in events.failed.items() if name in shown),
    ]


def with_common_paths(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, with one path in the settings for inputs that have the same content.

    A run's data may be moved, and nodes may have copies of their own.  Runs that read the same
    content, by the digests in their newest checkpoints, get the path of the first of them.  If one
    path had different contents, a digest follows it in all runs but those of the first content.
    Runs without digests keep their paths.
    """
    paths: dict[tuple[str, str], str] = {}  # by key and digest
    return [replace(run, settings={**run.settings, **_paths(run, paths)}) for run in runs]


def _paths(run: RunRecord, paths: dict[tuple[str, str], str]) -> Mapping[str, str]:
    """The run's paths as they are to be compared; ``paths`` has those of the runs before it."""
    changed = {}
    places = input_places(run.settings)
    if isinstance(init := run.settings.get("model.init"), str):
        places["model.init"] = init
    for key, path in places.items():
        digest = _digest(run, key)
        if digest is None:
            continue
        taken = any(k == key and other == path for (k, _), other in paths.items())
        changed[key] = paths.setdefault((key, digest), f"{path} ({digest})" if taken else path)
    return changed


def _digest(run: RunRecord, key: str) -> str | None:
    """One digest of all inputs below the path of a key; None if none is recorded."""
    below = sorted(item for item in run.inputs.items() if item[0].partition("/")[0] == key)
    return blake2b(repr(below).encode(), digest_size=4).hexdigest() if below else None
