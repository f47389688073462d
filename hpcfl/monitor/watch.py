"""Show `hpcfl status` of a run, or of a folder of runs, as a page that follows it."""

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpcfl.comm.heartbeat import Heartbeat
from hpcfl.errors import DiskError, JobError
from hpcfl.io.files import present, readable
from hpcfl.monitor.facts import DISK_S, LATE_S, RunFacts, RunObserver
from hpcfl.monitor.status import TITLES, describe
from hpcfl.report import timing
from hpcfl.report.collect import Found, find_runs, state_without_directory
from hpcfl.report.text_plot import NARROWEST, text_plot
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import OF_RANKS
from hpcfl.run_dir.record import RunRecord

EVERY_S = 1.0  # between two pages
PAGE = 100, 40  # columns and lines where there is no terminal
STATES = {
    "alive": "bold green",
    "failed": "bold red",
    "diverged": "bold red",
    "stopped": "bold yellow",
    "not running": "bold red",
    "finished": "bold cyan",
    "not started": "dim",
    "damaged": "bold red",
}
BAR = 16  # columns of a bar
PLOT = 6  # least lines of the plot, with its frame
CURVES = ("test_accuracy", "client_accuracy_mean", "train_objective", "test_loss", "train_loss")
VALIDATION = ("validation_accuracy", "validation_loss")
IN_PANELS = ("time", "imbalance", "ranks")  # lines of the status that the panels show in full
NOT_SHOWN = ("branch", "last start", "versions")  # they do not change while a run is watched

Page = Callable[[Console], RenderableType]


def watch(root: Path) -> str:
    """Show the page until q or Ctrl-C; where there is no terminal, return one page as text.

    Raises:
        JobError: the directory holds no run.
        StoreError: a file of a run is damaged.
    """
    try:
        with readable(root):
            return _watch(page_of(root))
    except FileNotFoundError as error:
        raise JobError(f"{root}: the run has gone ({error.filename}); name another") from error


def _watch(page: Page) -> str:
    console = Console()
    if not (console.is_terminal and sys.stdin.isatty()):
        text = Console(width=PAGE[0], height=PAGE[1], color_system=None)
        with text.capture() as captured:
            text.print(page(text))
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
    live = Live(page(console), console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), _keys() as pressed:
        try:  # not by `with`: Ctrl-C may come while the alternate screen is entered
            live.start(refresh=True)
            while pressed(EVERY_S) not in ("q", "Q"):
                live.update(page(console), refresh=True)
        finally:
            live.stop()
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read keys without return: yield a function that waits some seconds for a key."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> str:
        found, _, _ = select.select([fd], [], [], seconds)
        return sys.stdin.read(1) if found else ""

    tty.setcbreak(fd, termios.TCSADRAIN)  # a key that was pressed early counts
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def page_of(root: Path) -> Page:
    """Return the function that draws a run, or a folder of runs, as it is when it is called.

    Raises:
        JobError: ``root`` is neither.
    """
    found = find_runs(root).runs
    if found and root not in found:
        return _FolderPage(root)
    RunDir(root).require()
    observer = RunObserver(root)
    return lambda console: _run_page(observer.read(), observer.sizes(), console)


def _run_page(facts: RunFacts, sizes: str, console: Console) -> RenderableType:
    """The lines of `hpcfl status`, a plot, and, on a high console, two panels."""
    lines = [(title, text) for title, text in describe(facts, sizes) if title not in NOT_SHOWN]
    with_panels = [(title, text) for title, text in lines if title not in IN_PANELS]
    room = max(4, console.height - len(with_panels) - PLOT - 3)
    phases, ranks = _phases(facts), _ranks(facts, time.time(), room)
    height = 2 + max(phases.row_count, ranks.row_count)
    panels = []
    if len(with_panels) + height + PLOT < console.height:
        lines = with_panels
        panel = Table.grid(expand=True, padding=(0, 1))
        panel.add_column(ratio=2)
        panel.add_column(ratio=3)
        panel.add_row(Panel(phases, title="time"), Panel(ranks, title="ranks"))
        panels = [panel]
    status = Table.grid(padding=(0, 2))
    status.add_column(no_wrap=True, min_width=max(len(title) for title, _ in lines))
    status.add_column(overflow="fold")
    style = STATES[facts.state()]
    for title, text in lines:
        marked = title in ("run", "ended", "diverged", "resume", "warning")
        status.add_row(title, Text(text, style if marked else ""))
    taken = len(console.render_lines(status))  # long lines are folded
    rest = console.height - taken - (height if panels else 0) - 1
    plot = [_curves(facts.record, console, rest - 2)] if rest >= PLOT else []
    return Group(status, *plot, *panels)


class _Row(NamedTuple):
    """A run among others."""

    state: str
    cells: Sequence[RenderableType]


class _FolderPage:
    """A table with a line for each run of a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._observers: dict[Path, RunObserver] = {}
        self._found = Found({}, ())
        self._find_due = 0.0

    def __call__(self, console: Console) -> RenderableType:
        """Draw the table; where the console is too low for all runs, those alive come first."""
        found = self._find()
        rows = [self._row(path, failed=failed) for path, failed in found.runs.items()]
        counts = {state: sum(row.state == state for row in rows) for state in STATES}
        title = Text(f"{self._root}: ")
        title.append(", ".join(f"{n} {state}" for state, n in counts.items() if n), "bold")
        made = Table(expand=True, box=None, header_style="dim")
        # On a narrow console the other cells are cut, never the counter of rounds.
        counter = max((len(str(row.cells[2])) for row in rows), default=0)
        made.add_column("run", no_wrap=True)
        made.add_column("", no_wrap=True)
        made.add_column("rounds", no_wrap=True, justify="right", min_width=counter)
        # Those of validation data have a column where a run has some.
        cut = None if any(row.cells[-1] for row in rows) else -1
        for name in ("", "rounds/s", "left", "score", "validation")[:cut]:
            made.add_column(name, no_wrap=True, justify="right")
        room = max(1, console.height - 5 - len(found.unreadable))
        if len(rows) > room:
            rows.sort(key=lambda row: [*STATES].index(row.state))
        for row in rows[:room]:
            made.add_row(*row.cells[:cut])
        more = f"and {len(rows) - room} more" if len(rows) > room else ""
        return Group(title, made, Text(more, "dim"), *map(Text, found.unreadable))

    def _find(self) -> Found:
        """Find the runs, new ones too; where this takes long, at most once in DISK_S."""
        began = time.monotonic()
        if began >= self._find_due:
            self._found = find_runs(self._root)
            slow = time.monotonic() - began > EVERY_S
            self._find_due = time.monotonic() + (DISK_S if slow else 0.0)
        return self._found

    def _row(self, root: Path, *, failed: bool) -> _Row:
        name = str(root.relative_to(self._root))
        try:
            if not present(root / "job.yaml"):
                state = state_without_directory(failed=failed)
                return _Row(state, [name, Text(state, STATES[state]), *[""] * 6])
            facts = self._observers.setdefault(root, RunObserver(root)).read()
        # Of this run, `hpcfl status` says what is wrong: the others are shown all the same.
        except (JobError, DiskError, OSError):
            return _Row("damaged", [name, Text("damaged", STATES["damaged"]), *[""] * 6])
        run, state, speed = facts.record, facts.state(failed=failed), facts.speed
        left = "-" if facts.time_left is None else str(facts.time_left)
        shown = Text(state, STATES[state])
        if run.divergence and state != "diverged":
            shown.append(", diverged", STATES["diverged"])
        return _Row(state, [
            name, shown, f"{run.done}/{run.rounds}", ProgressBar(run.rounds, run.done, width=BAR),
            f"{speed:.3g}" if speed else "-", left, _newest_score(run, CURVES) or "-",
            _newest_score(run, VALIDATION),
        ])  # fmt: skip


def _curves(run: RunRecord, console: Console, height: int) -> RenderableType:
    """Plot the first of CURVES that the run has, and beside it that of VALIDATION, if any."""
    keys = [key for wanted in (CURVES, VALIDATION) if (key := _first(run, wanted))] or [""]
    braille = console.encoding.lower().startswith("utf")
    width = max(console.width // len(keys) - 4, NARROWEST)
    row = Table.grid(expand=True)
    panels = []
    for key in keys:
        row.add_column(ratio=1)
        curve = run.curve(key) if key else ()
        text = "\n".join(text_plot(curve, run.rounds, width, height, braille=braille))
        panels.append(Panel(Text(text, no_wrap=True), title=_title(key)))
    row.add_row(*panels)
    return row


def _first(run: RunRecord, keys: Sequence[str]) -> str:
    """The first of the keys that the run has a number of; "" if it has none."""
    return next((key for key in keys if run.curve(key)), "")


def _title(key: str) -> str:
    return TITLES.get(key, key.replace("_", " "))


def _phases(facts: RunFacts) -> Table:
    """The share of each phase in the time of the last rounds."""
    made = Table.grid(padding=(0, 1))
    for name, share in sorted(timing.shares(facts.recent).items(), key=lambda phase: -phase[1]):
        made.add_row(name, ProgressBar(1.0, share, width=BAR), f"{share:6.1%}")
    if not made.row_count:
        made.add_row("the log does not tell")
    return made


def _ranks(facts: RunFacts, now: float, room: int) -> Table:
    """The phase of each rank, and its work in the last rounds as a share of the busiest rank's.

    Args:
        facts: the run.
        now: seconds since the epoch.
        room: lines for ranks.
    """
    made = Table.grid(padding=(0, 1))
    heartbeats: Sequence[Heartbeat] = facts.heartbeats()
    lines = [line[OF_RANKS] for line in facts.recent if line.get(OF_RANKS)]
    # A resume may have changed the number of ranks: take the rounds since then.
    lines = [line for line in lines if len(line) == len(lines[-1])]
    loads = [sum(rank) for rank in zip(*lines, strict=True)]
    known = {beat.rank: beat for beat in heartbeats}
    several_hosts = len({beat.host for beat in heartbeats}) > 1
    ranks = sorted({*range(len(loads)), *known})
    for rank in ranks[:room]:
        beat = known.get(rank)
        cells: list[RenderableType] = [f"{rank}"]
        if loads:
            load = loads[rank] / max(loads) if rank < len(loads) else 0.0
            cells += [ProgressBar(1.0, load, width=BAR // 2), f"{load:4.0%}"]
        if beat:
            where = f"{beat.host}: " if several_hosts else ""
            text = f"{where}{beat.phase} round {beat.round}, {beat.age(now):.0f} s ago"
            cells.append(Text(text, "bold red" if beat.age(now) > LATE_S else "", no_wrap=True))
        made.add_row(*cells)
    imbalance = timing.imbalance(facts.recent)
    if imbalance is not None:
        made.add_row("", "slowest", f"{imbalance:.2f}", "times the mean")
    if len(ranks) > room:
        made.add_row("", f"and {len(ranks) - room} more")
    if not ranks:
        made.add_row("one rank, or none alive")
    return made


def _newest_score(run: RunRecord, keys: Sequence[str]) -> str:
    """The newest value of the first of these keys that the run has; "" if it has none."""
    key = _first(run, keys)
    if not key:
        return ""
    # The column of VALIDATION says what an accuracy is of.
    title = f"{_title(key)} " if key != VALIDATION[0] else ""
    return f"{title}{run.curve(key)[-1][1]:.4g}"
