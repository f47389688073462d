"""Lay out a table with a row for each run."""

from collections.abc import Sequence

from hpcfl.job.settings import distinguishing_settings, labels
from hpcfl.report.columns import (
    COST_COLUMNS,
    RUN_VALUES,
    SCORE_COLUMNS,
    number_values,
    optional_scores,
    run_captions,
)
from hpcfl.report.compared_runs import ComparedRuns
from hpcfl.report.comparison import ComparisonColumns, spread
from hpcfl.report.seed_groups import seed_captions, seed_groups
from hpcfl.report.seeds import seed_table
from hpcfl.report.table import Report, Table, Value, with_settings, without_blanks
from hpcfl.run_dir.record import RunRecord


def by_run(runs: Sequence[RunRecord], comparison: ComparisonColumns | None = None) -> Report:
    """A table of the runs, with a column of the settings that differ; below, means over seeds.

    The values for programs have a row for each run, and no means.
    """
    comparison, compared = comparison or ComparisonColumns(), ComparedRuns.of(runs)
    runs = compared.runs
    tables = [_table(runs, comparison)]
    means = seed_table(runs, comparison)
    if means.several:
        tables.append(means.table)
    captions = [*tables[-1].captions, *compared.caption("best"), *comparison.captions]
    if means.several:
        captions += seed_captions(runs, seed_groups(runs))
    captions += run_captions(runs)
    tables[-1] = tables[-1]._replace(captions=captions)
    return Report(tables, _values(runs, comparison))


def _table(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> Table:
    scores = optional_scores(runs)
    names = labels([run.path for run in runs])
    score_titles, cost_titles = (
        [title for title, _ in cells] for cells in (SCORE_COLUMNS, COST_COLUMNS)
    )
    added = [column.title for column in comparison.columns]
    rows = [
        [
            label,
            *(show(run) for _, show in SCORE_COLUMNS[1:]),
            *(spread([value(run)], show) for _, value, show in scores),
            *(column.cells[index] for column in comparison.columns),
            *(show(run) for _, show in COST_COLUMNS),
        ]
        for index, (label, run) in enumerate(zip(names, runs, strict=True))
    ]
    table = Table([*score_titles, *(title for title, _, _ in scores), *added, *cost_titles], rows)
    table = with_settings(
        table, 2, distinguishing_settings([run.settings for run in runs], but=["rounds"])
    )
    return without_blanks(table, kept=added)


def _values(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> list[dict[str, Value]]:
    added = {key: values for column in comparison.columns for key, values in column.values.items()}
    differing = distinguishing_settings([run.settings for run in runs], but=["rounds"])
    numbers = number_values(runs)
    return [
        {
            **{key: value(run) for key, value in RUN_VALUES},
            **{key: value(run) for key, value in numbers},
            **{key: values[index] for key, values in added.items()},
            "settings": differing[index],
        }
        for index, run in enumerate(runs)
    ]
