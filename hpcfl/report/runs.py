"""Lay out a table with a row for each run."""

from collections.abc import Sequence

from hpcfl.job.settings import distinguishing_settings, labels
from hpcfl.report.columns import COSTS, DIVERGED, NAMES, NUMBERS, SCORE_COLUMNS, optional_scores
from hpcfl.report.comparison import ComparisonColumns, spread
from hpcfl.report.seeds import seed_sheet
from hpcfl.report.table import Report, Table, Value, with_settings, without_blanks
from hpcfl.run_dir.record import RunRecord


def by_run(runs: Sequence[RunRecord], comparison: ComparisonColumns | None = None) -> Report:
    """A row for each run, with a column of the settings that differ; below, means over seeds.

    The values are those of the runs.
    """
    comparison = comparison or ComparisonColumns()
    sheets = [_sheet(runs, comparison)]
    means = seed_sheet(runs, comparison)
    if means.several:
        sheets.append(means.sheet)
    captions = [*sheets[-1].captions, *comparison.captions]
    captions += [DIVERGED] if any(run.diverged for run in runs) else []
    sheets[-1] = sheets[-1]._replace(captions=captions)
    return Report(sheets, _values(runs, comparison))


def _sheet(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> Table:
    scores = optional_scores(runs)
    names = labels([run.path for run in runs])
    shown, spent = ([title for title, _ in cells] for cells in (SCORE_COLUMNS, COSTS))
    added = [column.title for column in comparison.columns]
    rows = [
        [
            label,
            *(show(run) for _, show in SCORE_COLUMNS[1:]),
            *(spread([value(run)], show) for _, value, show in scores),
            *(column.cells[index] for column in comparison.columns),
            *(show(run) for _, show in COSTS),
        ]
        for index, (label, run) in enumerate(zip(names, runs, strict=True))
    ]
    sheet = Table([*shown, *(title for title, _, _ in scores), *added, *spent], rows)
    sheet = with_settings(
        sheet, 2, distinguishing_settings([run.settings for run in runs], but=["rounds"])
    )
    return without_blanks(sheet, kept=added)


def _values(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> list[dict[str, Value]]:
    added = {key: values for column in comparison.columns for key, values in column.values.items()}
    differing = distinguishing_settings([run.settings for run in runs], but=["rounds"])
    return [
        {
            **{key: value(run) for key, value in NAMES},
            **{key: value(run) for key, value in NUMBERS},
            **{key: values[index] for key, values in added.items()},
            "settings": differing[index],
        }
        for index, run in enumerate(runs)
    ]
