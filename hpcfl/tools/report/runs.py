"""Lay out a table with a row for each run, and one of means over seeds."""

from collections.abc import Sequence

from hpcfl.runs.job_file.settings import SEED
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.columns import (
    ABOUT,
    BEST,
    BEST_AT,
    COSTS,
    MEAN_ACCURACY,
    MEAN_OF_LAST,
    Column,
    score_columns,
)
from hpcfl.tools.report.comparison import ComparisonColumns
from hpcfl.tools.report.groups import (
    ComparedRuns,
    diverged_note,
    labels,
    run_captions,
    score_captions,
    seed_captions,
    seed_groups,
)
from hpcfl.tools.report.set_ups import differing, method_names
from hpcfl.tools.report.table import Report, Table, Value, with_settings, without_blanks

SEEDS_CAPTION = "+-: sample standard deviation over the finished runs of a job with several seeds"


def by_run(runs: Sequence[RunRecord], comparison: ComparisonColumns | None = None) -> Report:
    """A table of the runs, with a column of the settings that differ; below, means over seeds.

    The values for programs have a row for each run, and no means.
    """
    comparison, compared = comparison or ComparisonColumns(), ComparedRuns.of(runs)
    runs, groups = compared.runs, seed_groups(runs)
    several = any(len(group) > 1 for group in groups)
    tables = [_table(runs, comparison)]
    if several:
        tables.append(_seed_table(runs, groups, comparison))
    captions = [*tables[-1].captions, *compared.caption("best"), *score_captions(runs)]
    captions += comparison.captions
    captions += seed_captions(runs, groups) if several else []
    tables[-1] = tables[-1]._replace(captions=[*captions, *run_captions(runs)])
    columns = [*ABOUT, *score_columns(runs), *comparison.columns, *COSTS]
    settings_of = differing(runs, but=["rounds"])
    values = [
        {**{c.key: c.value(run) for c in columns if c.key is not None}, "settings": settings}
        for run, settings in zip(runs, settings_of, strict=True)
    ]
    return Report(tables, values)


def by_seed(runs: Sequence[RunRecord], comparison: ComparisonColumns | None = None) -> Report:
    """A table of means over the finished runs, which the column `seeds` counts.

    The rounds to a target are also taken from unfinished runs that reached it, as no later round
    changes them.  A cell whose mean is not over all runs of the job shows over how many it is.
    The values for programs are means, and standard deviations where two seeds or more finished.
    """
    comparison, compared = comparison or ComparisonColumns(), ComparedRuns.of(runs)
    runs, groups = compared.runs, seed_groups(runs)
    table = _seed_table(runs, groups, comparison)
    captions = [*table.captions, *compared.caption("best"), *score_captions(runs)]
    captions += comparison.captions
    captions += [*seed_captions(runs, groups), *run_captions(runs)]
    columns = [*score_columns(runs), *comparison.columns, *COSTS]
    values = [
        _seed_values([runs[index] for index in group], columns, settings)
        for group, settings in zip(groups, _seed_settings(runs, groups), strict=True)
    ]
    return Report([table._replace(captions=captions)], values)


def _table(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> Table:
    scores = [BEST_AT if column is BEST else column for column in score_columns(runs)]
    columns = [*ABOUT[1:], *scores, *comparison.columns, *COSTS]
    shown = [column for column in columns if column.title is not None]
    rows = [
        [label, *(column.cell(run) for column in shown)]
        for label, run in zip(labels([run.path for run in runs]), runs, strict=True)
    ]
    table = Table(["run", *(str(column.title) for column in shown)], rows)
    settings_of = differing(runs, but=["rounds"])
    return without_blanks(with_settings(table, 2, settings_of), kept=_titles(comparison))


def _seed_table(
    runs: Sequence[RunRecord], groups: Sequence[Sequence[int]], comparison: ComparisonColumns
) -> Table:
    """Its only caption explains the standard deviations; the caller adds others."""
    columns = [*score_columns(runs), *comparison.columns]
    shown = [column for column in columns if column.title is not None]
    rows, names = [], method_names(runs)
    for group in groups:
        members = [runs[index] for index in group]
        finished = sum(run.finished for run in members)
        count = f"{finished}" + ("" if finished == len(members) else f" of {len(members)}")
        cells = [_alike(column, members).seeds_cell(members) for column in shown]
        rows.append([names[group[0]], count + diverged_note(members), *cells])
    several = any(len(group) > 1 for group in groups)
    titles = ["algorithm", "seeds", *(str(column.title) for column in shown)]
    table = Table(titles, rows, [SEEDS_CAPTION] if several else [])
    return without_blanks(
        with_settings(table, 1, _seed_settings(runs, groups)), kept=_titles(comparison)
    )


def _titles(comparison: ComparisonColumns) -> list[str]:
    return [column.title for column in comparison.columns if column.title is not None]


def _alike(column: Column, members: Sequence[RunRecord]) -> Column:
    """The column, empty where it is a mean of the last rounds, but not of as many in each run."""
    several = len({run.window for run in members if run.finished}) > 1
    if several and column in (MEAN_OF_LAST, MEAN_ACCURACY):
        return column._replace(value=lambda _: None)
    return column


def _seed_settings(runs: Sequence[RunRecord], groups: Sequence[Sequence[int]]) -> list[str]:
    settings_of = differing(runs, but=[SEED])
    return [settings_of[group[0]] for group in groups]


def _seed_values(
    members: Sequence[RunRecord], columns: Sequence[Column], settings: str
) -> dict[str, Value]:
    found: dict[str, Value] = {
        "algorithm": members[0].algorithm,
        "rounds": members[0].rounds,
        "seeds": len(members),
        "seeds_finished": sum(run.finished for run in members),
        "seeds_diverged": sum(run.diverged for run in members),
        "score_of": members[0].score_of,
        "chosen_on": members[0].chosen_on,
    }
    for column in columns:
        found |= _alike(column, members).seeds_values(members)
    return {**found, "settings": settings}
