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
from rich.filesize import decimal
from rich.table import Table

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


def table(runs: Sequence[RunRecord]) -> Table:
    """Runs side by side, one a row; sizes in powers of 1000."""
    made = Table(box=box.ASCII2)
    for index, (title, _) in enumerate(_SHOWN):
        made.add_column(title, justify="left" if index < 2 else "right", no_wrap=True)
    for run in runs:
        made.add_row(*(show(run) for _, show in _SHOWN))
    return made


def plain(runs: Sequence[RunRecord]) -> str:
    """The table in plain ASCII, as wide as it needs to be."""
    out = io.StringIO()
    Console(file=out, width=1000, color_system=None).print(table(runs), markup=False)
    return out.getvalue()


def to_markdown(runs: Sequence[RunRecord]) -> str:
    """The table in Markdown."""
    rows = [
        [title.replace("\n", " ") for title, _ in _SHOWN],
        [":--" if index < 2 else "--:" for index in range(len(_SHOWN))],
        *([show(run).replace("|", "\\|") for _, show in _SHOWN] for run in runs),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def to_csv(runs: Sequence[RunRecord]) -> str:
    """The runs as CSV: full precision, fractions and plain units; what is absent stays empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(key for key, _ in _VALUES)
    writer.writerows([value(run) for _, value in _VALUES] for run in runs)
    return out.getvalue()
