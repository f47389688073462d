"""Read a sweep file: the job of every point of its grid, checked when it is asked for.

job: cifar10/fedavg_noniid.yaml         # the base job, relative to this file
set: {rounds: 60, local.lr: 0.1}        # over the job, in every run
grid:
  method:                               # an axis of named points: keys and their values
    fedavg: {algorithm: {name: fedavg}}
    fedcm: {algorithm: {name: fedcm, alpha: 0.1}}
  seed: [0, 1, 2]                       # an axis that is a key of the job
only:                                   # for some points, chosen as by --only
  fedcm,seed0: {local.lr_decay: 0.99}
ranks: 1                                # of each run
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import product
from math import prod
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcfl.errors import JobError
from hpcfl.io.words import counted
from hpcfl.runs.job_file.packaged import find_job
from hpcfl.runs.job_file.run_name import RUNS
from hpcfl.runs.job_file.words import SECTION, shown, suggestion
from hpcfl.runs.job_file.yaml_file import JobFile, Key, as_override, override, read, tuples
from hpcfl.runs.names import may_name_point
from hpcfl.runs.sweep_log import Label

if TYPE_CHECKING:
    from hpcfl.job.schema import LoadedJob

KEYS = ("job", "set", "grid", "only", "ranks")
MOST = 10_000  # runs: all are checked before the first one starts
_COMMAND: Key = ("command line",)
_NAME = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
)  # of a directory, without characters that a shell would need quotes for


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    labels: tuple[str, ...]
    """Its choice on each axis of the grid: ("fedcm", "seed1")."""
    overrides: tuple[str, ...]
    """Over the base job, as on the command line."""
    file: JobFile
    """The job's values, with the file and line of each, for error messages."""
    where: str
    """The file and line of its first choice."""
    axes: tuple[Label, ...]
    """The labels, each with the keys that its choice sets."""
    listed: tuple[str, ...]
    """The axes that have a list of values, up to the first dot."""
    number: int = 0
    """Its place in the grid, counted from 0."""

    @property
    def name(self) -> str:
        """The labels joined, unique in the sweep, and the name of the run directory."""
        return "-".join(self.labels)

    @cached_property
    def loaded(self) -> "LoadedJob":
        """The checked job.

        Raises:
            JobError: where, what was found, what was expected.
        """
        from hpcfl.job.load import check  # which needs torch
        from hpcfl.job.resolve import resolve_algorithm  # which needs torch

        try:
            loaded = check(self.file, self.name)
        except JobError as e:
            if any(f'a job has no "{key}" ' in str(e) for key in self.listed):
                raise JobError(f"{e} (an axis with a list of values is a key of the job)") from e
            raise
        try:
            return resolve_algorithm(loaded, loaded.job.data.population)
        except JobError as e:
            raise JobError(f"{self.where}: {self.name}: {e}") from e


@dataclass(frozen=True)
class Sweep:
    """A sweep."""

    path: Path
    job: Path
    """The file of the base job."""
    ranks: int
    points: tuple[Point, ...]
    file: JobFile
    """Its values, with the line of each, for error messages."""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def directory(self) -> Path:
        """The default directory of its runs: runs/NAME, or runs/NAME-sweep if NAME is the job's."""
        return RUNS / (f"{self.name}-sweep" if self.name == self.job.stem else self.name)

    def chosen(self, points: tuple[int, int] | None, labels: Sequence[str] | None) -> "Sweep":
        """The points that a command line chose, of numbers or of labels; all of them by default.

        Raises:
            JobError: there are none.
        """
        if points is not None:
            return self.part(*points)
        return self if labels is None else self.only(labels)

    def part(self, first: int, last: int) -> "Sweep":
        """Points ``first`` to ``last``, counted from 0, as far as there are any.

        Raises:
            JobError: there is none.
        """
        points = self.points[first : last + 1]
        if not points:
            raise JobError(
                f"--points: found {first}-{last}, expected some of 0-{len(self.points) - 1}: "
                f"{self.path} has {counted(len(self.points), 'run')}"
            )
        return replace(self, points=points)

    def only(self, labels: Sequence[str]) -> "Sweep":
        """Select points by their labels.

        Labels of one axis are alternatives, labels of several axes must all hold: of a grid of
        methods and splits, ("fedavg", "fedhbm", "iid") selects two points.

        Raises:
            JobError: no point has one of the labels.
        """
        axes = list(zip(*(point.labels for point in self.points), strict=True))
        wanted = _wanted(labels, axes, "--only", f"{self.path}")
        return replace(self, points=tuple(p for p in self.points if _selected(p.labels, wanted)))


def _wanted(
    labels: Sequence[str], axes: Sequence[Sequence[str]], where: str, grid: str
) -> tuple[frozenset[str], ...]:
    """The wanted labels of each axis; none where all are wanted.

    Raises:
        JobError: no axis has one of the labels.
    """
    known = list(dict.fromkeys(known for axis in axes for known in axis))
    for label in labels:
        if label not in known:
            raise JobError(
                f"{where}: found {label!r}, expected labels of {grid}: {', '.join(known)}"
                + suggestion(label, known)
            )
    return tuple(frozenset(labels).intersection(axis) for axis in axes)


def _selected(labels: Sequence[str], wanted: Sequence[frozenset[str]]) -> bool:
    """Whether a point has a wanted label on every axis."""
    return all(not some or label in some for label, some in zip(labels, wanted, strict=True))


class _Setting(NamedTuple):
    key: Key
    """In the job."""
    value: Any
    at: Key
    """In the sweep file."""


class _Choice(NamedTuple):
    """A point of one axis."""

    label: str
    settings: tuple[_Setting, ...]
    at: Key


def read_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep and check the job of every point of its grid; see ``read_grid``."""
    sweep = read_grid(path, overrides)
    for point in sweep.points:
        clients = point.loaded.job.data.population
        if clients is not None and sweep.ranks > clients:
            raise JobError(
                f"{sweep.file.where(('ranks',))}: ranks: {point.name} has {clients} client(s), and "
                f"{sweep.ranks} ranks; a rank would own none, so say at most {clients}"
            )
    return sweep


def read_grid(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep without checking the jobs of its points, which needs no torch.

    Args:
        path: the sweep file, or the name of one that is installed with hpcfl.
        overrides: ``key.path=value`` settings over those of `set`, for every run.

    Raises:
        JobError: where, what was found, what was expected.
    """
    path = find_job(path)
    file = read(path)
    if "grid" not in file.tree and file.tree.keys() & {"task", "data"}:
        raise JobError(f"{path}: this is a job, not a sweep; use `hpcfl run {path}`")
    for key in file.tree:
        if key not in KEYS:
            raise JobError(
                f'{file.where((key,))}: a sweep has no "{key}" (it has {", ".join(KEYS)})'
                + suggestion(key, KEYS)
            )
    job, ranks = file.tree.get("job"), file.tree.get("ranks", 1)
    if not isinstance(job, str):
        state = "missing" if job is None else f"found {shown(job)}"
        raise JobError(
            f"{file.where(('job',))}: job: {state}, expected a job's file or the name of a "
            "packaged job, such as quickstart"
        )
    if type(ranks) is not int or ranks < 1:
        at = file.where(("ranks",))
        raise JobError(f"{at}: ranks: found {shown(ranks)}, expected a whole number from 1")
    base = _base(file, job)
    always = _settings(file, file.tree.get("set", {}), ("set",)) + _overridden(file, overrides)
    points: dict[str, Point] = {}
    axes = _axes(file)
    special = _special(file, axes)
    for choices in product(*axes):
        labels = [choice.label for choice in choices]
        extra = [choice for wanted, choice in special if _selected(labels, wanted)]
        point = _point(file, deepcopy(base), always, choices, extra)
        if point.name in points:
            raise JobError(
                f"{point.where}: two runs are called {point.name!r}; give their axis other names"
            )
        if not may_name_point(point.name):
            raise JobError(
                f"{point.where}: a run cannot be called {point.name!r}: one of its files may have "
                "the name of another file of the sweep; give its axis other names"
            )
        points[point.name] = replace(point, number=len(points))
    return Sweep(path, Path(base.name), ranks, tuple(points.values()), file)


def _base(file: JobFile, job: str) -> JobFile:
    """Read the base job, whose path is relative to the sweep."""
    at = f"{file.where(('job',))}: job"
    try:
        path = find_job(job, Path(file.name).parent)
    except JobError as e:
        raise JobError(f"{at}: {e}") from e
    base = read(path)
    if "grid" in base.tree:
        raise JobError(f"{at}: {path} is a sweep, expected a job's file")
    return base


def _axes(file: JobFile) -> list[list[_Choice]]:
    grid = file.tree.get("grid")
    if not isinstance(grid, dict) or not grid:
        raise JobError(
            f"{file.where(('grid',))}: grid: found {shown(grid)}, expected axes: a key of the job "
            "with a list of values, or a name with a mapping of named points"
        )
    listed = [axis.rpartition(".")[2] for axis, values in grid.items() if isinstance(values, tuple)]
    axes = []
    for axis, values in grid.items():
        at: Key = ("grid", axis)
        if not isinstance(values, dict | tuple) or not values:
            empty = " that is not empty" if isinstance(values, dict | tuple) else ""
            raise JobError(
                f"{file.where(at)}: grid.{axis}: found {shown(values)}, expected a list of values "
                f"or a mapping of named points{empty}"
            )
        if isinstance(values, dict):
            axes.append([_named(file, label, values[label], (*at, label)) for label in values])
        else:
            _refuse_twice(file, axis, values)
            short = axis.rpartition(".")[2]
            prefix = short if listed.count(short) == 1 else axis
            axes.append(
                [_valued(file, axis, prefix, value, (*at, i)) for i, value in enumerate(values)]
            )
    if (count := prod(map(len, axes))) > MOST:
        raise JobError(f"{file.where(('grid',))}: grid: {count} runs, expected {MOST} at most")
    return axes


def _refuse_twice(file: JobFile, axis: str, values: Sequence[Any]) -> None:
    """Refuse a list in which a value occurs twice, as its runs would have one directory."""
    for index, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:index]):
            at = file.where(("grid", axis, index))
            raise JobError(f"{at}: grid.{axis}: {shown(value)} occurs twice; remove one of the two")


def _special(
    file: JobFile, axes: Sequence[Sequence[_Choice]]
) -> list[tuple[tuple[frozenset[str], ...], _Choice]]:
    """The settings of `only`, each with the labels of the points that have them."""
    at: Key = ("only",)
    entries = file.tree.get("only", {})
    if not isinstance(entries, dict):
        raise JobError(
            f"{file.where(at)}: only: found {shown(entries)}, expected labels of the grid, "
            "each with settings: LABEL,LABEL: {KEY: VALUE}"
        )
    known = [[choice.label for choice in axis] for axis in axes]
    special = []
    for text, settings in entries.items():
        where: Key = (*at, text)
        labels = [label.strip() for label in str(text).split(",")]
        wanted = _wanted(labels, known, f"{file.where(where)}: only", "the grid")
        if settings == {}:
            raise JobError(
                f"{file.where(where)}: only.{text}: found nothing, expected keys of the job with "
                "their values; remove the entry, or fill it"
            )
        special.append((wanted, _Choice(text, _settings(file, settings, where), where)))
    return special


def _named(file: JobFile, label: str, settings: Any, at: Key) -> _Choice:
    if not _NAME.fullmatch(label):
        raise JobError(
            f"{file.where(at)}: {label!r} names a directory; use letters, digits and . _ + -"
        )
    return _Choice(label, _settings(file, settings, at), at)


def _valued(file: JobFile, axis: str, prefix: str, value: Any, at: Key) -> _Choice:
    """A choice of one value: the label of a number has the key ("lr0.1"), text does not."""
    if isinstance(value, bool):
        label = f"{prefix}-{str(value).lower()}"
    else:
        label = value if isinstance(value, str) else f"{prefix}{value}"
    if isinstance(value, dict | tuple | None) or not _NAME.fullmatch(label):
        raise JobError(
            f"{file.where(at)}: grid.{axis}: {shown(value)} makes no name of a directory; "
            f"make the axis a mapping of named points, NAME: {{{axis}: VALUE}}"
        )
    return _Choice(label, (_Setting(_split(file, axis, at), value, at),), at)


def _settings(file: JobFile, settings: Any, at: Key) -> tuple[_Setting, ...]:
    if not isinstance(settings, Mapping):
        dotted = ".".join(map(str, at))
        raise JobError(f"{file.where(at)}: {dotted}: found {shown(settings)}, expected {SECTION}")
    return tuple(
        _Setting(_split(file, dotted, (*at, dotted)), value, (*at, dotted))
        for dotted, value in settings.items()
    )


def _overridden(file: JobFile, overrides: Sequence[str]) -> tuple[_Setting, ...]:
    file.lines[_COMMAND] = "command line"
    settings = []
    for text in overrides:
        said = JobFile("command line", {})
        override(said, [text])
        key = tuple(text.partition("=")[0].split("."))
        settings.append(_Setting(key, reduce(getitem, key, said.tree), _COMMAND))
    return tuple(settings)


def _split(file: JobFile, dotted: str, at: Key) -> Key:
    key = tuple(dotted.split("."))
    if not all(key):
        raise JobError(f"{file.where(at)}: {dotted!r}: expected a key such as local.lr")
    return key


def _point(
    file: JobFile,
    job: JobFile,
    always: Sequence[_Setting],
    choices: Sequence[_Choice],
    extra: Sequence[_Choice],
) -> Point:
    """The run of one choice on every axis, with what `only` adds; changes the job."""
    made: list[_Setting] = []
    for choice in (_Choice("", tuple(always), ()), *choices, *extra):
        for setting in choice.settings:
            # A whole section of a point does not undo the keys of `set` that it does not have.
            kept = [one for one in made if _is_beside(one, setting)]
            made = [one for one in made if one not in kept]
            _refuse_loss(file, setting, made)
            for one in (setting, *kept):
                job.put(one.key, tuples(one.value), file.where(one.at))
                for at, line in file.lines.items():
                    if at[: len(one.at)] == one.at:
                        job.lines[(*one.key, *at[len(one.at) :])] = line
            made += [setting, *kept]
    overrides = tuple(as_override(".".join(map(str, one.key)), one.value) for one in made)
    axes = tuple(
        Label(choice.label, tuple(".".join(map(str, one.key)) for one in choice.settings))
        for choice in choices
    )
    listed = tuple(str(one.settings[0].key[0]) for one in choices if isinstance(one.at[-1], int))
    labels = tuple(choice.label for choice in choices)
    return Point(labels, overrides, job, file.where(choices[0].at), axes, listed)


def _is_beside(earlier: _Setting, setting: _Setting) -> bool:
    """Whether a key of `set` is of a section that a point sets, but not of what the point says."""
    depth = len(setting.key)
    if earlier.at[0] != "set" or setting.at[0] not in ("grid", "only"):
        return False
    if len(earlier.key) <= depth or earlier.key[:depth] != setting.key:
        return False
    value = setting.value
    for part in earlier.key[depth:]:
        if not isinstance(value, Mapping):
            return False
        if part not in value:
            return True
        value = value[part]
    return False


def _refuse_loss(file: JobFile, setting: _Setting, made: Sequence[_Setting]) -> None:
    """Refuse a setting that would silently replace another choice, an override or part of `set`.

    The command line may replace what `set` says, and of a key that it has twice the last counts.
    """
    for earlier in made:
        in_set, again = earlier.at[0] == "set", earlier.at == setting.at == _COMMAND
        same = setting.key == earlier.key
        above = not same and earlier.key[: len(setting.key)] == setting.key
        if not (same or above) or (same and (in_set or again)):
            continue
        if above and in_set and setting.at == _COMMAND:
            continue
        undone, key = (".".join(map(str, which.key)) for which in (earlier, setting))
        if earlier.at == _COMMAND and (part := setting.at[0]) in ("grid", "only"):
            axis = setting.at[:2] == ("grid", key)
            where = file.where(setting.at[:2] if axis else setting.at)
            place = "the grid" if part == "grid" else "the section only"
            raise JobError(
                f"{key} is {'an axis of' if axis else 'set in'} {place} ({where}); take "
                f"{undone if above else 'it'} off the command line, or out of {place}"
            )
        raise JobError(
            f"{file.where(setting.at)}: {key} would undo {undone} of {file.where(earlier.at)}; "
            "say it once, and whole sections before their keys"
        )
