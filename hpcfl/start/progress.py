"""Show the progress of a run: a bar on a terminal, plain lines anywhere else."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from hpcfl.errors import one_line
from hpcfl.io.packages import installed
from hpcfl.io.progress import has_bars, until_unread
from hpcfl.runs.score_names import is_score, is_titled
from hpcfl.types import Record

Clock = Callable[[], float]  # seconds

DRAW_S = 0.1  # between two draws of the bar
LINE_S = 1.0  # between two plain lines, and between two lines of evaluated rounds
KEPT = 3  # rounds before a resume that are listed


class Progress:
    """Prints nothing: for ranks other than 0, and the base class of the others."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Close nothing."""

    def round(self, record: Record) -> None:
        """Report a round; called once a round with its line of log.jsonl."""

    def kept(self, log: Sequence[Mapping[str, Any]]) -> None:
        """List the last rounds that a resume kept, and the last of them that was evaluated.

        Args:
            log: the lines of log.jsonl.
        """

    def note(self, text: str) -> None:
        """Print a line."""


def _is_evaluated(record: Mapping[str, Any]) -> bool:
    return any(map(is_score, record))


class _Paced(Progress, ABC):
    """Prints rounds at intervals of ``interval`` seconds, and the last one.

    Evaluated rounds have an interval of their own: otherwise a rare evaluation among quick rounds
    would often not be printed.
    """

    def __init__(
        self, job_name: str, rounds: int, start: int, stream: IO[str], clock: Clock, interval: float
    ) -> None:
        self._stream = stream
        self._job_name, self._rounds, self._start = job_name, rounds, start
        self._clock, self._interval = clock, interval
        self._began = clock()
        self._due = self._due_evaluated = self._began  # the first of each is always shown

    def round(self, record: Record) -> None:
        evaluated = _is_evaluated(record)
        now = self._clock()
        due = self._due_evaluated if evaluated else self._due
        if now < due and record["round"] != self._rounds:
            return
        self._due = now + self._interval
        if evaluated:
            self._due_evaluated = self._due
        self._show(int(record["round"]), record, now - self._began)

    def kept(self, log: Sequence[Mapping[str, Any]]) -> None:
        evaluated = [record for record in log[:-KEPT] if _is_evaluated(record)]
        recent = log[-KEPT:]
        for record in recent if any(map(_is_evaluated, recent)) else [*evaluated[-1:], *recent]:
            self._print(self._line(record, "kept"))

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._stream.write(f"{one_line(text)}\n")
        self._stream.flush()

    def _line(self, record: Mapping[str, Any], pace: str) -> str:
        """A round as a line of text: its number, a pace, its loss and scores."""
        width = len(str(self._rounds))
        fields = [
            f"{name} {'null' if value is None else format(value, '.4g'):<9}"
            for name, value in record.items()
            if name == "train_loss" or is_titled(name)
        ]
        where = f"{self._job_name} round {record['round']:{width}d}/{self._rounds}"
        return "  ".join([where, pace, *fields]).rstrip()

    @abstractmethod
    def _show(self, round: int, record: Record, elapsed: float) -> None: ...

    def _pace(self, round: int, elapsed: float) -> str:
        """Rounds per second of this process and the time left at that pace."""
        done = round - self._start
        if done <= 0 or elapsed <= 0:
            return "      - rounds/s  eta -"
        left = timedelta(seconds=int((self._rounds - round) * elapsed / done))
        return f"{done / elapsed:7.4g} rounds/s  eta {left}"


class _Lines(_Paced):
    """Aligned lines for a log file, about one each second, and one of evaluated rounds."""

    def _show(self, round: int, record: Record, elapsed: float) -> None:
        self._print(self._line(record, self._pace(round, elapsed)))


class _Bar(_Paced):
    """A bar for the whole run, drawn by ``round`` itself: a thread would disturb MPI's."""

    def __init__(
        self, job_name: str, rounds: int, start: int, console: Console, clock: Clock, key: str
    ) -> None:
        super().__init__(job_name, rounds, start, console.file, clock, DRAW_S)
        self._key = key
        self._accuracy = ""  # of the newest evaluation
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[status]}", markup=False),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            expand=True,
        )
        self._task = self._bar.add_task(
            one_line(job_name), total=rounds, completed=start, status=""
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def _print(self, text: str) -> None:
        self._bar.console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)

    def _show(self, round: int, record: Record, elapsed: float) -> None:
        loss = f"loss {record['train_loss']:.4g}" if "train_loss" in record else ""
        if self._key in record:
            kind = "personal " if self._key.startswith("personal_") else ""
            self._accuracy = f"{kind}acc {record[self._key]:.4f}"
        parts = [loss, self._accuracy, self._pace(round, elapsed).lstrip()]
        status = "  ".join(part for part in parts if part)
        self._bar.update(self._task, completed=round, status=status, refresh=True)


def open_progress(
    job_name: str,
    rounds: int,
    start: int,
    rank: int,
    *,
    stream: IO[str] | None = None,
    clock: Clock = time.monotonic,
    accuracy: str = "test_accuracy",
) -> Progress:
    """Make the progress of a run, a context manager.

    It is a bar if rich finds an interactive terminal, or a notebook with ipywidgets.  mpirun gives
    its ranks a pipe; set TTY_COMPATIBLE=1 TTY_INTERACTIVE=1 in the environment to get a bar there.

    Args:
        job_name: begins each line.
        rounds: rounds of the run.
        start: rounds that are already completed.
        rank: of this process; only rank 0 prints.
        stream: where to print; None: standard error.
        clock: a monotonic clock, in seconds.
        accuracy: the key in the log of the accuracy in a bar.
    """
    if rank != 0:
        return Progress()
    stream = until_unread(sys.stderr if stream is None else stream)
    console, job_name = Console(file=stream), one_line(job_name)
    if has_bars(console) or (console.is_jupyter and installed("ipywidgets")):
        return _Bar(job_name, rounds, start, console, clock, accuracy)
    return _Lines(job_name, rounds, start, stream, clock, LINE_S)
