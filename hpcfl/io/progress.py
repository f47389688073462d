"""Show the progress of a run: a bar on a terminal, plain lines anywhere else."""

import errno
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Self, TypeVar, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.progress import track as rich_track
from rich.table import Column

from hpcfl.errors import one_line
from hpcfl.io.packages import installed
from hpcfl.types import Record

T = TypeVar("T")
Clock = Callable[[], float]  # seconds

DRAW_S = 0.1  # between two draws of the bar
LINE_S = 1.0  # between two plain lines, and between two lines of evaluated rounds
KEPT = 3  # rounds before a resume that are listed
TRACK_S = 10.0  # between two lines of ``track``
# Prefixes of the scores of an evaluation.
SCORES = ("train_objective", "test_", "validation_", "client_accuracy", "local_model_accuracy")
LOGGED_ALONE = ("_std", "_best_decile")  # ends of names: a line has the mean and the worst decile


class _UntilUnread:
    """A stream whose reader may leave: what is printed after that goes to /dev/null."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._discarding():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._discarding():
            self._stream.flush()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            if e.errno not in (errno.EPIPE, errno.EIO):  # a closed pipe, or a closed terminal
                raise
            with Path(os.devnull).open("wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())


def until_unread(stream: IO[str]) -> IO[str]:
    """The stream, to which a long run may print even after its reader has left.

    A pipe (``| head``) or a terminal may be closed while a run goes on.  The run does not end: from
    then on the file descriptor of the stream is that of /dev/null.
    """
    return cast("IO[str]", _UntilUnread(stream))


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
    return any(name.startswith(SCORES) for name in record)


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
        width, shown = len(str(self._rounds)), ("train_loss", *SCORES)
        fields = [
            f"{name} {'null' if value is None else format(value, '.4g'):<9}"
            for name, value in record.items()
            if name.startswith(shown) and not name.endswith(LOGGED_ALONE)
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
        self, job_name: str, rounds: int, start: int, console: Console, clock: Clock
    ) -> None:
        super().__init__(job_name, rounds, start, console.file, clock, DRAW_S)
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
        if "test_accuracy" in record:
            self._accuracy = f"acc {record['test_accuracy']:.4f}"
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
    """
    if rank != 0:
        return Progress()
    stream = until_unread(sys.stderr if stream is None else stream)
    console, job_name = Console(file=stream), one_line(job_name)
    if has_bars(console) or (console.is_jupyter and installed("ipywidgets")):
        return _Bar(job_name, rounds, start, console, clock)
    return _Lines(job_name, rounds, start, stream, clock, LINE_S)


def has_bars(console: Console) -> bool:
    """Whether to draw bars: on a terminal, or where TTY_INTERACTIVE says that there is one.

    FORCE_COLOR makes rich take a file for a terminal, too, which bars would fill.
    """
    is_terminal = getattr(console.file, "isatty", None)  # a stream of a notebook may lack it
    terminal = (is_terminal is not None and is_terminal()) or "TTY_INTERACTIVE" in os.environ
    return terminal and console.is_interactive


def track(
    items: Iterable[T], what: str, total: int | None = None, *, thread: bool = True
) -> Iterator[T]:
    """Iterate over items and show the progress: a bar on a terminal, else a line every 10 s.

    Args:
        items: any.
        what: names what is counted: "verified states".
        total: how many items there are, if known.
        thread: whether a thread draws the bar; else it is drawn between two items.
    """
    console, what = Console(stderr=True), one_line(what)
    if has_bars(console):
        yield from rich_track(
            items, what, total, console=console, transient=True, auto_refresh=thread
        )
        return
    of = "" if total is None else f" of {total}"
    due = time.monotonic() + TRACK_S
    for done, item in enumerate(items):
        if time.monotonic() >= due:
            due += TRACK_S
            sys.stderr.write(f"{what}: {done}{of}\n")
        yield item
