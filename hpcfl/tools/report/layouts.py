"""Arrange runs as a table, by the name of a layout, for the command line and for Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.runs.job_file.words import shown
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.choose import ChosenRuns, choose_settings
from hpcfl.tools.report.collect import collect_runs
from hpcfl.tools.report.comparison import with_published
from hpcfl.tools.report.formats import plain
from hpcfl.tools.report.papers import as_papers
from hpcfl.tools.report.plots import Plot
from hpcfl.tools.report.rounds_to_target import Target, with_target
from hpcfl.tools.report.runs import by_run, by_seed
from hpcfl.tools.report.table import Report, Value
from hpcfl.tools.report.timing import by_phase

LAYOUTS = ("runs", "seeds", "paper", "time")


@dataclass(frozen=True)
class RunsReport:
    """Runs, side by side."""

    runs: Sequence[RunRecord]
    """Each with its job's settings, log and scores."""
    values: Sequence[Mapping[str, Value]]
    """The rows of the table, all with the same keys: fractions instead of percentages, not rounded,
    None where there is nothing."""
    notes: Sequence[str]
    """Lines about sweeps, and about files that cannot be read."""
    summary: str
    """The table that ``hpcfl report`` prints."""

    def __str__(self) -> str:
        return self.summary


def arranged(chosen: ChosenRuns, layout: str, targets: Sequence[Target] = ()) -> Report:
    """The table of a layout; captions about a choice of settings are below the last table.

    Raises:
        JobError: there is no such layout, or it has no targets.
    """
    if layout not in LAYOUTS:
        raise JobError(
            f"report: layout: found {shown(layout)}, expected one of {', '.join(LAYOUTS)}"
        )
    runs = chosen.runs
    if layout == "paper":
        report = as_papers(runs, targets)
    elif layout == "time":
        report = by_phase(runs)
    else:
        comparison = with_published(runs)
        for target in targets:
            comparison = comparison.joined(with_target(runs, target))
        report = (by_run if layout == "runs" else by_seed)(runs, comparison)
    *tables, last = report.tables
    last = last._replace(
        captions=[*last.captions, *chosen.captions], remarks=[*last.remarks, *chosen.choices]
    )
    return report._replace(tables=[*tables, last])


def report_runs(
    paths: Sequence[Path],
    *,
    layout: str,
    chosen: bool,
    target_accuracies: float | Sequence[float],
    plot: Path | None,
    y: str | None,
    x: str,
) -> RunsReport:
    """See ``hpcfl.report_runs``.

    Raises:
        JobError: there is no run in one of the directories, or nothing to draw.
        StoreError: a file of a run is damaged.
    """
    if not paths:
        raise JobError("directories: found none, expected those of a run or a sweep at least")
    collected = collect_runs(paths)
    kept = choose_settings(collected.runs) if chosen else ChosenRuns(collected.runs)
    if isinstance(target_accuracies, int | float):
        target_accuracies = [target_accuracies]
    table = arranged(kept, layout, Target.from_options([], target_accuracies))
    notes = [*collected.notes]
    if plot is not None:
        drawn = Plot(kept.runs, [plot], y, x, kept.note)
        drawn.draw()
        notes += drawn.notes
    return RunsReport(kept.runs, table.values, notes, plain(table))
