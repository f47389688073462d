"""What a run directory says of its run, and runs side by side."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from hpcfl.errors import JobError, StoreError

Cell = str | int | float | None


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
        return {
            key: tuple((entry["round"], float(entry[key])) for entry in self.log if key in entry)
            for key in ("test_loss", "test_accuracy")
        }

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
            "name the --out directory of a hpcfl run"
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
    return RunRecord(path, algorithm, rounds, window, _read_log(path / "log.jsonl"))


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


def _plain(value: Cell) -> str:
    return "-" if value is None else str(value)


def _percent(value: Cell) -> str:
    return f"{100 * value:.2f}" if isinstance(value, float) else "-"


def _loss(value: Cell) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-"


def _size(value: Cell) -> str:
    size = float(value or 0)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.4g} {unit}"


def _duration(value: Cell) -> str:
    seconds = float(value or 0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


@dataclass(frozen=True)
class _Column:
    key: str  # of the CSV file, with its unit
    title: str
    value: Callable[[RunRecord], Cell]
    show: Callable[[Cell], str] = _plain
    numeric: bool = True


_COLUMNS = (
    _Column("run", "run", lambda run: run.name, numeric=False),
    _Column("algorithm", "algorithm", lambda run: run.algorithm, numeric=False),
    _Column("rounds_done", "rounds", lambda run: run.done),
    _Column("rounds", "of", lambda run: run.rounds),
    _Column(
        "state", "state", lambda run: "done" if run.finished else "unfinished", numeric=False
    ),
    _Column("accuracy", "accuracy %", lambda run: run.last("test_accuracy"), _percent),
    _Column("best_accuracy", "best %", lambda run: run.best[1] if run.best else None, _percent),
    _Column("best_round", "at round", lambda run: run.best[0] if run.best else None),
    _Column("mean_accuracy", "mean of last %", lambda run: run.mean_accuracy, _percent),
    _Column("test_loss", "test loss", lambda run: run.last("test_loss"), _loss),
    _Column("down_bytes", "down", lambda run: int(run.total("down_bytes")), _size),
    _Column("up_bytes", "up", lambda run: int(run.total("up_bytes")), _size),
    _Column("wall_s", "wall time", lambda run: run.total("wall_s"), _duration),
)  # fmt: skip


def table(runs: Sequence[RunRecord]) -> Table:
    """Runs side by side, one a row."""
    made = Table(box=box.ASCII2)
    for column in _COLUMNS:
        made.add_column(column.title, justify="right" if column.numeric else "left", no_wrap=True)
    for cells in _shown(runs):
        made.add_row(*cells)
    return made


def text(runs: Sequence[RunRecord]) -> str:
    """The table in plain ASCII, as wide as it needs to be."""
    out = io.StringIO()
    Console(file=out, width=1000, color_system=None).print(table(runs), markup=False)
    return out.getvalue()


def markdown(runs: Sequence[RunRecord]) -> str:
    """The table in Markdown."""
    rows = [
        [column.title for column in _COLUMNS],
        ["--:" if column.numeric else ":--" for column in _COLUMNS],
        *([cell.replace("|", "\\|") for cell in cells] for cells in _shown(runs)),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def comma_separated(runs: Sequence[RunRecord]) -> str:
    """The table as CSV: full precision, fractions and plain units, absent values empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.key for column in _COLUMNS)
    writer.writerows([column.value(run) for column in _COLUMNS] for run in runs)
    return out.getvalue()


def _shown(runs: Sequence[RunRecord]) -> list[list[str]]:
    return [[column.show(column.value(run)) for column in _COLUMNS] for run in runs]
