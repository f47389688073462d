"""What a run directory says of its run, and runs side by side."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from hpcfl.compare import SEED, Settings, apart, flat, labels, over_seeds
from hpcfl.errors import JobError, StoreError


@dataclass(frozen=True)
class RunRecord:
    """A run as its directory tells it, finished or not."""

    path: Path
    algorithm: str
    rounds: int
    """How many rounds the job asks for."""
    window: int
    """The job's evaluate.last: every one of the last ``window`` rounds is evaluated."""
    log: tuple[Mapping[str, Any], ...]
    """One object per round, in order; round 0 is the initial model."""
    settings: Settings = field(default_factory=dict)
    """The job's values by their dotted keys."""

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def done(self) -> int:
        """Rounds completed."""
        return int(self.log[-1]["round"]) if self.log else 0

    @property
    def finished(self) -> bool:
        """Whether every round of the job is in the log."""
        return self.done >= self.rounds

    @cached_property
    def scores(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """(round, value) of every evaluation, by the names "test_loss" and "test_accuracy"."""
        return {key: self.curve(key) for key in ("test_loss", "test_accuracy")}

    def curve(self, key: str) -> tuple[tuple[int, float], ...]:
        """(round, value) of every round whose line of the log has the key."""
        return tuple((entry["round"], float(entry[key])) for entry in self.log if key in entry)

    def last(self, key: str) -> float | None:
        """The newest value of a score, or None where there is none."""
        return self.scores[key][-1][1] if self.scores[key] else None

    @property
    def best(self) -> tuple[int, float] | None:
        """(round, value) of the best test accuracy, the first of equals."""
        return max(self.scores["test_accuracy"], key=lambda score: score[1], default=None)

    @property
    def mean_accuracy(self) -> float | None:
        """Mean test accuracy of the last ``window`` rounds, once the run is finished."""
        if not self.finished:
            return None
        tail = [v for t, v in self.scores["test_accuracy"] if t > self.rounds - self.window]
        return math.fsum(tail) / len(tail) if tail else None

    def total(self, key: str) -> float:
        """The sum over the rounds of what a round spends ("wall_s", "down_bytes", "up_bytes")."""
        return math.fsum(entry.get(key, 0) for entry in self.log)


def read_run(path: Path) -> RunRecord:
    """Read a run directory; a run in progress, its last line cut short, is read up to there.

    Raises:
        JobError: the directory holds no run.
        StoreError: a file of the run is damaged.
    """
    job_file = path / "job.yaml"
    if not job_file.is_file():
        raise JobError(
            f"{path}: no job.yaml here, so this is no run directory; "
            "name the --out directory of a hpcfl run, or of a sweep"
        )
    try:
        job = yaml.safe_load(job_file.read_text("utf-8"))
        algorithm, rounds, window = (
            str(job["algorithm"]["name"]), int(job["rounds"]), int(job["evaluate"]["last"])
        )  # fmt: skip
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{job_file}: not the resolved job of a run (needs algorithm.name, rounds and "
            f"evaluate.last): {' '.join(str(error).split())}"
        ) from error
    return RunRecord(path, algorithm, rounds, window, _read_log(path / "log.jsonl"), flat(job))


def read_runs(path: Path) -> list[RunRecord]:
    """Read a run directory, or every run in a folder of them, as a sweep leaves it.

    Raises:
        JobError, StoreError: as `read_run`.
    """
    inside = sorted(job.parent for job in path.glob("*/job.yaml"))
    if (path / "job.yaml").is_file() or not inside:
        return [read_run(path)]
    return [read_run(run) for run in inside]


def _read_log(path: Path) -> tuple[Mapping[str, Any], ...]:
    if not path.exists():
        return ()
    lines = path.read_text("utf-8").split("\n")[:-1]  # a last line without its end is not written
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise StoreError(
                f"{path}:{number}: {error.msg} where a round's JSON object was expected; "
                "the log is damaged: resume the run to restore it from its checkpoint"
            ) from error
        if not isinstance(entry, dict) or not isinstance(entry.get("round"), int):
            raise StoreError(f'{path}:{number}: found no object with a whole number "round"')
        entries.append(entry)
    return tuple(entries)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4g}"


def _rounds(run: RunRecord) -> str:
    return f"{run.done}/{run.rounds}" + ("" if run.finished else " unfinished")


def _best(run: RunRecord) -> str:
    return "-" if run.best is None else f"{_percent(run.best[1])} @{run.best[0]}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}"


# For people: a title, and a run's cell below it.
_SHOWN: tuple[tuple[str, Callable[[RunRecord], str]], ...] = (
    ("run", lambda run: run.name),
    ("algorithm", lambda run: run.algorithm),
    ("rounds", _rounds),
    ("accuracy\n%", lambda run: _percent(run.last("test_accuracy"))),
    ("best\n% @round", _best),
    ("mean of\nlast %", lambda run: _percent(run.mean_accuracy)),
    ("test\nloss", lambda run: _loss(run.last("test_loss"))),
    ("down", lambda run: decimal(int(run.total("down_bytes")))),
    ("up", lambda run: decimal(int(run.total("up_bytes")))),
    ("wall\ntime", lambda run: _duration(run.total("wall_s"))),
)

_LEFT = ("run", "algorithm", "settings")

# For programs: a key, with its unit, and a run's value.
_VALUES: tuple[tuple[str, Callable[[RunRecord], str | float | None]], ...] = (
    ("run", lambda run: run.name),
    ("algorithm", lambda run: run.algorithm),
    ("rounds", lambda run: run.rounds),
    ("rounds_done", lambda run: run.done),
    ("test_accuracy", lambda run: run.last("test_accuracy")),
    ("best_accuracy", lambda run: run.best[1] if run.best else None),
    ("best_round", lambda run: run.best[0] if run.best else None),
    ("mean_accuracy", lambda run: run.mean_accuracy),
    ("test_loss", lambda run: run.last("test_loss")),
    ("down_bytes", lambda run: int(run.total("down_bytes"))),
    ("up_bytes", lambda run: int(run.total("up_bytes"))),
    ("wall_s", lambda run: run.total("wall_s")),
)


# Over seeds: a title, a run's value, and how values are shown.
_SCORES: tuple[tuple[str, Callable[[RunRecord], float | None], str], ...] = (
    ("accuracy\n%", lambda run: _in_percent(run.last("test_accuracy")), "{:.2f}"),
    ("best\n%", lambda run: _in_percent(run.best[1] if run.best else None), "{:.2f}"),
    ("mean of\nlast %", lambda run: _in_percent(run.mean_accuracy), "{:.2f}"),
    ("test\nloss", lambda run: run.last("test_loss"), "{:.4g}"),
)


def _in_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def rows(runs: Sequence[RunRecord]) -> list[list[str]]:
    """The titles, then a row a run; what their jobs differ in has a column, if there is any."""
    found = [[title for title, _ in _SHOWN]]
    found += [
        [label, *(show(run) for _, show in _SHOWN[1:])]
        for label, run in zip(labels([run.path for run in runs]), runs, strict=True)
    ]
    _insert(found, 2, apart([run.settings for run in runs]))
    return found


def seed_rows(runs: Sequence[RunRecord]) -> list[list[str]]:
    """The titles and a row for the finished runs of each job but for its seed; or nothing.

    Mean +- sample standard deviation; there are rows once some job was run with several seeds.
    """
    groups = over_seeds([run.settings for run in runs])
    if not any(len(group) > 1 for group in groups):
        return []
    differing = apart([run.settings for run in runs], but=[SEED])
    found = [["algorithm", "seeds", *(title for title, _, _ in _SCORES)]]
    for group in groups:
        members = [runs[index] for index in group if runs[index].finished]
        count = f"{len(members)}" + ("" if len(members) == len(group) else f" of {len(group)}")
        scores = [_spread([value(run) for run in members], show) for _, value, show in _SCORES]
        found.append([runs[group[0]].algorithm, count, *scores])
    _insert(found, 1, [differing[group[0]] for group in groups])
    return found


def _insert(found: list[list[str]], place: int, settings: Sequence[str]) -> None:
    """Add a column of what jobs differ in, if they differ in anything."""
    if any(settings):
        for row, text in zip(found, ["settings", *settings], strict=True):
            row.insert(place, text)


def _spread(values: Sequence[float | None], show: str) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    mean = show.format(fmean(known))
    return mean if len(known) == 1 else f"{mean} +- {show.format(stdev(known))}"


def tables(runs: Sequence[RunRecord]) -> list[Table]:
    """Runs side by side, one a row, and means over seeds; sizes in powers of 1000."""
    return [_drawn(found) for found in (rows(runs), seed_rows(runs)) if found]


def _drawn(found: Sequence[Sequence[str]]) -> Table:
    made = Table(box=box.ASCII2)
    for title in found[0]:
        made.add_column(title, justify="left" if title in _LEFT else "right", no_wrap=True)
    for row in found[1:]:
        made.add_row(*row)
    return made


def plain(runs: Sequence[RunRecord]) -> str:
    """The tables in plain ASCII, as wide as they need to be."""
    out = io.StringIO()
    Console(file=out, width=1000, color_system=None).print(*tables(runs), markup=False, sep="\n")
    return out.getvalue()


def to_markdown(runs: Sequence[RunRecord]) -> str:
    """The tables in Markdown."""
    return "\n".join(_marked(found) for found in (rows(runs), seed_rows(runs)) if found)


def _marked(found: Sequence[Sequence[str]]) -> str:
    lines = [
        [title.replace("\n", " ") for title in found[0]],
        [":--" if title in _LEFT else "--:" for title in found[0]],
        *([cell.replace("|", "\\|") for cell in row] for row in found[1:]),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_csv(runs: Sequence[RunRecord]) -> str:
    """The runs as CSV: full precision, fractions and plain units; what is absent stays empty.

    The last column holds what their jobs differ in.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(key for key, _ in _VALUES), "settings"])
    differing = apart([run.settings for run in runs])
    for run, settings in zip(runs, differing, strict=True):
        writer.writerow([*(value(run) for _, value in _VALUES), settings])
    return out.getvalue()
