"""Show a run or a folder of runs as a page on the terminal that follows it."""

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from shutil import disk_usage

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpcfl.comm.heartbeat import Heartbeat, read_newest
from hpcfl.errors import DiskError, JobError
from hpcfl.io.files import present, readable
from hpcfl.monitor.status import LATE_S, TITLES, newest, on_disk, recent, time_left
from hpcfl.report import timing
from hpcfl.report.collect import Found, find_runs, state, unbegun
from hpcfl.report.text_plot import text_plot
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import OF_RANKS, LogReader
from hpcfl.run_dir.manifest import committed_folders
from hpcfl.run_dir.record import RunRecord, read_job, require_log, with_history

EVERY_S = 1.0  # between two looks
DISK_S = 10.0  # between two looks at what lies on the disk, which walks through folders
PAGE = 100, 32  # columns and lines where there is no terminal
STATES = {
    "alive": "bold green",
    "failed": "bold red",
    "diverged": "bold red",
    "stopped": "bold yellow",
    "not running": "bold red",
    "finished": "bold cyan",
    "not begun": "dim",
    "damaged": "bold red",
}
BAR = 16  # columns of a bar
CURVES = ("test_accuracy", "client_accuracy_mean", "train_objective", "test_loss", "train_loss")


def watch(root: Path) -> str:
    """Show the page until q, Ctrl-C; where there is no terminal, one page as text.

    Raises:
        JobError: the directory holds no run.
        StoreError: a file of a run is damaged.
    """
    try:
        with readable(root):
            return _watch(_looker(root))
    except FileNotFoundError as error:
        raise JobError(f"{root}: the run has gone ({error.filename}); name another") from error


def _watch(look: Callable[[Console], RenderableType]) -> str:
    console = Console()
    if not (console.is_terminal and sys.stdin.isatty()):
        page = Console(width=PAGE[0], height=PAGE[1], color_system=None)
        with page.capture() as taken:
            page.print(look(page))
        return "\n".join(line.rstrip() for line in taken.get().splitlines()) + "\n"
    live = Live(look(console), console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), _keys() as pressed:
        try:  # not by with: Ctrl-C may come while the page is entered
            live.start(refresh=True)
            while pressed(EVERY_S) not in ("q", "Q"):
                live.update(look(console), refresh=True)
        finally:
            live.stop()
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, without return; what is yielded waits so many seconds for one."""
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


def _looker(root: Path) -> Callable[[Console], RenderableType]:
    """What gives the page of a run, or of a folder of runs, as it is now.

    Raises:
        JobError: it is neither.
    """
    folder = RunDir(root)
    found = find_runs(root).runs
    if found and root not in found:
        return _Folder(root).page
    folder.require()
    return _Run(root).page


class _Run:
    """One run, as it is looked at again and again."""

    def __init__(self, root: Path) -> None:
        self._folder, self._log = RunDir(root), LogReader(RunDir(root).log)
        self._job, self._changed = self._described(), self._versions()
        self._disk, self._disk_due = "", 0.0
        self._compared: Path | None = None  # the checkpoint that the log was compared with

    def read(self) -> tuple[RunRecord, bool]:
        """The run, and whether it is alive."""
        alive = self._folder.is_locked()  # before its log: what is dead by now has written all
        changed = self._versions()
        if changed != self._changed:  # by a resume, or an end
            self._job, self._changed = self._described(), changed
        log = self._log.read()
        kept = committed_folders(self._folder.checkpoints)[-1:]
        if kept and kept[0] != self._compared:
            require_log(self._folder)
            self._compared = kept[0]
        return replace(self._job, log=log), alive

    def _described(self) -> RunRecord:
        """The run without its rounds."""
        return with_history(read_job(self._folder.root), self._folder.history_entries())

    def _versions(self) -> tuple[int, int]:
        """What changes when the job or the history does."""
        history = self._folder.history
        known = history.stat().st_mtime_ns if history.exists() else 0
        return self._folder.job.stat().st_mtime_ns, known

    def page(self, console: Console) -> RenderableType:
        """Everything about the run, as large as the console."""
        run, alive = self.read()
        now = time.time()
        beats = read_newest(self._folder.ranks) if alive else []
        top = [_title(run, alive), *_rounds(run, alive), *_diverged(run)]
        middle = Table.grid(expand=True, padding=(0, 1))
        middle.add_column(ratio=2)
        middle.add_column(ratio=3)
        room = max(4, console.height - 20)
        parts, ranks = _parts(run), _ranks(run, beats, now, room + 5)
        middle.add_row(Panel(parts, title="time"), Panel(ranks, title="ranks"))
        bottom = [*self._kept(), *([] if alive else _ended(run))]
        lower = 2 + max(parts.row_count, ranks.row_count + 1)
        height = console.height - len(top) - lower - len(bottom) - 3
        return Group(*top, _curve(run, console, max(4, height)), middle, *bottom)

    def _kept(self) -> Iterator[Text]:
        """What lies on the disk; the folders are walked through now and then."""
        if time.monotonic() >= self._disk_due:
            free = decimal(disk_usage(self._folder.root).free)
            self._disk = f"{on_disk(self._folder)}, {free} free"
            self._disk_due = time.monotonic() + DISK_S
        yield Text(f"last checkpoint: {newest(self._folder.checkpoints)}")
        yield Text(f"on disk: {self._disk}")


class _Folder:
    """The runs of a sweep: a line for each, those that are still to begin too."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs: dict[Path, _Run] = {}
        self._found = Found({}, ())
        self._find_due = 0.0

    def page(self, console: Console) -> RenderableType:
        """A table of the runs; where the console is too low for all, those alive first."""
        found = self._find()
        rows = [self._row(path, failed=failed) for path, failed in found.runs.items()]
        counts = {name: sum(row[0] == name for row in rows) for name in STATES}
        title = Text(f"{self._root}: ")
        title.append(", ".join(f"{n} {name}" for name, n in counts.items() if n), "bold")
        made = Table(expand=True, box=None, header_style="dim")
        for name in ("run", "", "rounds", "", "rounds/s", "left", "score"):
            made.add_column(name, no_wrap=True, justify="left" if name in ("run", "") else "right")
        room = max(1, console.height - 5 - len(found.unreadable))
        if len(rows) > room:
            rows.sort(key=lambda row: [*STATES].index(row[0]))
        for _, row in rows[:room]:
            made.add_row(*row)
        more = f"and {len(rows) - room} more" if len(rows) > room else ""
        return Group(title, made, Text(more, "dim"), *map(Text, found.unreadable))

    def _find(self) -> Found:
        """The runs, new ones too; where looking takes long, as of a few seconds ago."""
        began = time.monotonic()
        if began >= self._find_due:
            self._found = find_runs(self._root)
            late = time.monotonic() - began > EVERY_S
            self._find_due = time.monotonic() + (DISK_S if late else 0.0)
        return self._found

    def _row(self, root: Path, *, failed: bool) -> tuple[str, Sequence[RenderableType]]:
        """The state of a run, and the cells of its line."""
        name = str(root.relative_to(self._root))
        try:
            if not present(root / "job.yaml"):
                named = unbegun(failed=failed)
                return named, [name, Text(named, STATES[named]), *[""] * 5]
            if root not in self._runs:
                self._runs[root] = _Run(root)
            run, alive = self._runs[root].read()
        # Of one run, `hpcfl status` says what is wrong: the others are shown all the same.
        except (JobError, DiskError, OSError):
            return "damaged", [name, Text("damaged", STATES["damaged"]), *[""] * 5]
        named, speed = state(run, alive=alive, failed=failed), timing.pace(recent(run))
        score = _newest_score(run)
        left = str(time_left(run, speed)) if alive and speed else "-"
        bar = ProgressBar(run.rounds, run.done, width=BAR)
        shown = Text(named, STATES[named])
        if run.divergence and named != "diverged":
            shown.append(", diverged", STATES["diverged"])
        return named, [
            name, shown, f"{run.done}/{run.rounds}", bar,
            f"{speed:.3g}" if speed else "-", left, score
        ]  # fmt: skip


def _title(run: RunRecord, alive: bool) -> Text:
    named = state(run, alive=alive)
    title = Text(named, STATES[named], no_wrap=True, overflow="ellipsis")
    return title.append(f": {run.algorithm} in {run.path}", "default")


def _rounds(run: RunRecord, alive: bool) -> Iterator[RenderableType]:
    """How far it is, how fast, and what it scored last."""
    lately = recent(run)
    speed = timing.pace(lately)
    line = Table.grid(padding=(0, 2))
    texts = [f"{run.done} of {run.rounds} rounds"]
    texts += [f"{speed:.3g} rounds/s"] if speed else []
    texts += [f"{time_left(run, speed)} left"] if speed and alive else []
    line.add_row(ProgressBar(run.rounds, run.done, width=BAR), Text(", ".join(texts)))
    yield line
    rates = ((timing.rate(lately, key), key) for key in ("clients", "examples"))
    texts = [f"{_short(value)} {key}/s" for value, key in rates if value is not None]
    memory = (("memory_bytes", "in memory"), ("device_bytes", "on the device"))
    taken = ((_last(run, key), where) for key, where in memory)
    texts += [f"{decimal(int(count))} {where}" for count, where in taken if count]
    yield Text(", ".join(texts))
    named = {**TITLES, "train_loss": "train loss"}
    scores = ((title, _last(run, key)) for key, title in named.items())
    yield Text(", ".join(f"{title} {value:.4g}" for title, value in scores if value is not None))


def _curve(run: RunRecord, console: Console, height: int) -> Panel:
    """The first of CURVES that the run has."""
    found = ((key, run.curve(key)) for key in CURVES)
    key, curve = next(((key, curve) for key, curve in found if curve), ("", ()))
    braille = console.encoding.lower().startswith("utf")
    lines = text_plot(curve, run.rounds, console.width - 4, height, braille=braille)
    return Panel(Text("\n".join(lines), no_wrap=True), title=TITLES.get(key, key.replace("_", " ")))


def _parts(run: RunRecord) -> Table:
    """Where the time of the last rounds went."""
    made = Table.grid(padding=(0, 1))
    for name, share in sorted(timing.shares(recent(run)).items(), key=lambda part: -part[1]):
        made.add_row(name, ProgressBar(1.0, share, width=BAR), f"{share:6.1%}")
    if not made.row_count:
        made.add_row("the log does not tell")
    return made


def _ranks(run: RunRecord, beats: Sequence[Heartbeat], now: float, room: int) -> Table:
    """Where the ranks are, and how busy in the last rounds, as a share of the busiest."""
    made = Table.grid(padding=(0, 1))
    lines = [line[OF_RANKS] for line in recent(run) if line.get(OF_RANKS)]
    lines = [line for line in lines if len(line) == len(lines[-1])]  # of the last session
    loads = [sum(rank) for rank in zip(*lines, strict=True)]
    known = {beat.rank: beat for beat in beats}
    several = len({beat.host for beat in beats}) > 1
    ranks = sorted({*range(len(loads)), *known})
    for rank in ranks[:room]:
        beat = known.get(rank)
        late = beat is not None and beat.age(now) > LATE_S
        cells: list[RenderableType] = [f"{rank}"]
        if loads:
            load = loads[rank] / max(loads) if rank < len(loads) else 0.0
            cells += [ProgressBar(1.0, load, width=BAR // 2), f"{load:4.0%}"]
        if beat:
            said = f"{beat.phase} round {beat.round}, {beat.age(now):.0f} s ago"
            where = f"{beat.host}: " if several else ""
            cells.append(Text(where + said, "bold red" if late else "", no_wrap=True))
        made.add_row(*cells)
    slowest = timing.imbalance(recent(run))
    if slowest is not None:
        made.add_row("", "slowest", f"{slowest:.2f}", "times the mean")
    if len(ranks) > room:
        made.add_row("", f"and {len(ranks) - room} more")
    if not ranks:
        made.add_row("one rank, or none alive")
    return made


def _diverged(run: RunRecord) -> Iterator[Text]:
    """That it diverged to finite numbers, if it did."""
    if run.divergence:
        text = f"diverged: {run.divergence}"
        yield Text(text, STATES["diverged"], no_wrap=True, overflow="ellipsis")


def _ended(run: RunRecord) -> Iterator[Text]:
    """What to know of a run that is not alive."""
    if run.log:
        ago = timedelta(
            seconds=max(0, round(time.time() - (run.path / "log.jsonl").stat().st_mtime))
        )
        yield Text(f"the last round was written {ago} ago")
    now = state(run, alive=False)
    if run.outcome and now == run.outcome.ending and run.outcome.message:
        yield Text(f"{now}: {run.outcome.message}", STATES[now], no_wrap=True, overflow="ellipsis")
    if now not in ("finished", "diverged"):
        yield Text("not running: `hpcfl resume` goes on from the last checkpoint", "bold red")


def _short(value: float) -> str:
    """Three digits, and no exponent before there are many more."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _newest_score(run: RunRecord) -> str:
    for key in CURVES:
        value = _last(run, key)
        if value is not None:
            return f"{TITLES.get(key, key.replace('_', ' '))} {value:.4g}"
    return "-"


def _last(run: RunRecord, key: str) -> float | None:
    """The newest number under a key of the log."""
    for line in reversed(run.log):
        if isinstance(line.get(key), int | float):
            return float(line[key])
    return None
