"""Runs side by side, as tables and as CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from functools import partial
from shutil import get_terminal_size

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.measure import Measurement
from rich.table import Table

from hpcfl.beside import Beside, spread
from hpcfl.compare import SEED, apart, labels, over_seeds
from hpcfl.records import SCORES, RunRecord


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4g}"


def _rounds(run: RunRecord) -> str:
    return f"{run.done}/{run.rounds}" + ("" if run.finished else " unfinished")


def _best(run: RunRecord) -> str:
    if run.best is not None:
        return f"{_percent(run.best[1])} @{run.best[0]}"
    return "-" if run.lowest is None else f"loss {_loss(run.lowest[1])} @{run.lowest[0]}"


def _mean_of_last(run: RunRecord) -> float | None:
    """The mean over the job's window, unless that has a column of its own."""
    return None if run.window == 100 and run.accuracy_last100 is not None else run.mean_accuracy


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}"


# For people: a title, and a run's cell below it.
_Cell = tuple[str, Callable[[RunRecord], str]]
_SHOWN: tuple[_Cell, ...] = (
    ("run", lambda run: run.name),
    ("algorithm", lambda run: run.algorithm),
    ("rounds", _rounds),
    ("accuracy\n%", lambda run: _percent(run.last("test_accuracy"))),
    ("best\n% @round", _best),
    ("mean of\nlast %", lambda run: _percent(_mean_of_last(run))),
    ("last\n100 %", lambda run: _percent(run.accuracy_last100)),
    ("test\nloss", lambda run: _loss(run.last("test_loss"))),
)
_SPENT: tuple[_Cell, ...] = (
    ("down", lambda run: decimal(int(run.total("down_bytes")))),
    ("up", lambda run: decimal(int(run.total("up_bytes")))),
    ("wall\ntime", lambda run: _duration(run.total("wall_s"))),
)

_NOTHING = Beside()
_WIDE = 48  # of the settings, which are wrapped
_UNLIMITED = 1000
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
    ("accuracy_last100", lambda run: run.accuracy_last100),
    *((key, partial(RunRecord.last, key=key)) for key in SCORES if key != "test_accuracy"),
    ("lowest_loss", lambda run: run.lowest[1] if run.lowest else None),
    ("lowest_loss_round", lambda run: run.lowest[0] if run.lowest else None),
    ("down_bytes", lambda run: int(run.total("down_bytes"))),
    ("up_bytes", lambda run: int(run.total("up_bytes"))),
    ("wall_s", lambda run: run.total("wall_s")),
)


def _in_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


# Over seeds: a title, a run's value, and how values are shown.
_Score = tuple[str, Callable[[RunRecord], float | None], str]
_SCORES: tuple[_Score, ...] = (
    ("accuracy\n%", lambda run: _in_percent(run.last("test_accuracy")), "{:.2f}"),
    ("best\n%", lambda run: _in_percent(run.best[1] if run.best else None), "{:.2f}"),
    ("mean of\nlast %", lambda run: _in_percent(_mean_of_last(run)), "{:.2f}"),
    ("last\n100 %", lambda run: _in_percent(run.accuracy_last100), "{:.2f}"),
    ("test\nloss", lambda run: run.last("test_loss"), "{:.4g}"),
)
# In both tables, where a run has them.
_ASKED: tuple[_Score, ...] = (
    ("top 5\n%", lambda run: _in_percent(run.last("test_top5_accuracy")), "{:.2f}"),
    ("objective", lambda run: run.last("objective"), "{:.4g}"),
    ("clients\nmean %", lambda run: _in_percent(run.last("client_accuracy_mean")), "{:.2f}"),
    ("worst\n10th %", lambda run: _in_percent(run.last("client_accuracy_worst_decile")), "{:.2f}"),
    ("own models\nmean %", lambda run: _in_percent(run.last("own_accuracy_mean")), "{:.2f}"),
    ("worst\n10th %", lambda run: _in_percent(run.last("own_accuracy_worst_decile")), "{:.2f}"),
)


def _asked(runs: Sequence[RunRecord]) -> list[_Score]:
    return [score for score in _ASKED if any(score[1](run) is not None for run in runs)]


def rows(runs: Sequence[RunRecord], beside: Beside = _NOTHING) -> list[list[str]]:
    """The titles, then a row a run; what their jobs differ in has a column, if there is any."""
    asked = _asked(runs)
    names = labels([run.path for run in runs])
    shown, spent = ([title for title, _ in cells] for cells in (_SHOWN, _SPENT))
    added = [column.title for column in beside.columns]
    found = [[*shown, *(title for title, _, _ in asked), *added, *spent]]
    found += [
        [
            label,
            *(show(run) for _, show in _SHOWN[1:]),
            *(spread([value(run)], show) for _, value, show in asked),
            *(column.cells[index] for column in beside.columns),
            *(show(run) for _, show in _SPENT),
        ]
        for index, (label, run) in enumerate(zip(names, runs, strict=True))
    ]
    _insert(found, 2, apart([run.settings for run in runs]))
    return _without_blanks(found, added)


def seed_rows(runs: Sequence[RunRecord], beside: Beside = _NOTHING) -> list[list[str]]:
    """The titles and a row for the finished runs of each job but for its seed; or nothing.

    Mean +- sample standard deviation; there are rows once some job was run with several seeds.
    """
    groups = over_seeds([run.settings for run in runs])
    if not any(len(group) > 1 for group in groups):
        return []
    differing = apart([run.settings for run in runs], but=[SEED])
    shown = [*_SCORES, *_asked(runs)]
    added = [column.title for column in beside.columns]
    found = [["algorithm", "seeds", *(title for title, _, _ in shown), *added]]
    for group in groups:
        members = [index for index in group if runs[index].finished]
        count = f"{len(members)}" + ("" if len(members) == len(group) else f" of {len(group)}")
        scores = [
            spread([value(runs[index]) for index in members], show) for _, value, show in shown
        ]
        scores += [column.over_seeds(group, members) for column in beside.columns]
        found.append([runs[group[0]].algorithm, count, *scores])
    _insert(found, 1, [differing[group[0]] for group in groups])
    return _without_blanks(found, added)


def _without_blanks(found: list[list[str]], kept: Sequence[str]) -> list[list[str]]:
    """The columns in which some run has something, and those to be kept."""
    columns = [
        column
        for column in zip(*found, strict=True)
        if set(column[1:]) != {"-"} or column[0] in kept
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _insert(found: list[list[str]], place: int, settings: Sequence[str]) -> None:
    """Add a column of what jobs differ in, if they differ in anything."""
    if any(settings):
        for row, text in zip(found, ["settings", *settings], strict=True):
            row.insert(place, text)


def tables(runs: Sequence[RunRecord], beside: Beside = _NOTHING) -> list[Table]:
    """Runs side by side, one a row, and means over seeds; sizes in powers of 1000."""
    return [_drawn(found) for found in (rows(runs, beside), seed_rows(runs, beside)) if found]


def _drawn(found: Sequence[Sequence[str]]) -> Table:
    made = Table(box=box.ASCII2)
    for title, *cells in zip(*found, strict=True):
        if title == "settings":
            needed = max(len(word) for text in (title, *cells) for word in text.split())
            made.add_column(title, min_width=needed, max_width=max(needed, _WIDE))
        else:
            needed = max(len(line) for text in (title, *cells) for line in text.split("\n"))
            made.add_column(title, justify="left" if title in _LEFT else "right", min_width=needed)
    for row in found[1:]:
        made.add_row(*row)
    return made


def plain(runs: Sequence[RunRecord], beside: Beside = _NOTHING) -> str:
    """The tables in plain ASCII, as wide as the terminal where numbers need no more."""
    out, drawn = io.StringIO(), tables(runs, beside)
    console = Console(file=out, width=_UNLIMITED, color_system=None)
    needed = [Measurement.get(console, console.options, table).minimum for table in drawn]
    columns = get_terminal_size((_UNLIMITED, 0)).columns
    console.print(*drawn, markup=False, sep="\n", width=max(columns, *needed))
    return out.getvalue() + "".join(f"{line}\n" for line in beside.captions)


def to_markdown(runs: Sequence[RunRecord], beside: Beside = _NOTHING) -> str:
    """The tables in Markdown, captions as a list."""
    found = (rows(runs, beside), seed_rows(runs, beside))
    captions = "".join(f"- {line}\n" for line in beside.captions)
    return "\n".join([*(_marked(table) for table in found if table), *filter(None, [captions])])


def _marked(found: Sequence[Sequence[str]]) -> str:
    lines = [
        [title.replace("\n", " ") for title in found[0]],
        [":--" if title in _LEFT else "--:" for title in found[0]],
        *([cell.replace("|", "\\|") for cell in row] for row in found[1:]),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_csv(runs: Sequence[RunRecord], beside: Beside = _NOTHING) -> str:
    """The runs as CSV: full precision, fractions and plain units; what is absent stays empty.

    The last column holds what their jobs differ in.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    added = {key: values for column in beside.columns for key, values in column.values.items()}
    writer.writerow([*(key for key, _ in _VALUES), *added, "settings"])
    differing = apart([run.settings for run in runs])
    for run, *others in zip(runs, *added.values(), differing, strict=True):
        writer.writerow([*(value(run) for _, value in _VALUES), *others])
    return out.getvalue()
