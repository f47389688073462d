"""Lay out a table with a row for each run."""

from collections.abc import Sequence

from hpcfl.job.settings import distinguishing_settings, labels
from hpcfl.report.columns import DIVERGED, NAMES, NUMBERS, SHOWN, SPENT, asked
from hpcfl.report.comparison import Beside, spread
from hpcfl.report.seeds import seed_sheet
from hpcfl.report.table import Report, Table, Value, with_settings, without_blanks
from hpcfl.run_dir.record import RunRecord


def by_run(runs: Sequence[RunRecord], beside: Beside | None = None) -> Report:
    """A row a run, what their jobs differ in as a column; below, means over seeds if there are any.

    The values are those of the runs.
    """
    beside = beside or Beside()
    sheets = [_sheet(runs, beside)]
    means = seed_sheet(runs, beside)
    if means.several:
        sheets.append(means.sheet)
    captions = [*sheets[-1].captions, *beside.captions]
    captions += [DIVERGED] if any(run.diverged for run in runs) else []
    sheets[-1] = sheets[-1]._replace(captions=captions)
    return Report(sheets, _values(runs, beside))


def _sheet(runs: Sequence[RunRecord], beside: Beside) -> Table:
    scores = asked(runs)
    names = labels([run.path for run in runs])
    shown, spent = ([title for title, _ in cells] for cells in (SHOWN, SPENT))
    added = [column.title for column in beside.columns]
    rows = [
        [
            label,
            *(show(run) for _, show in SHOWN[1:]),
            *(spread([value(run)], show) for _, value, show in scores),
            *(column.cells[index] for column in beside.columns),
            *(show(run) for _, show in SPENT),
        ]
        for index, (label, run) in enumerate(zip(names, runs, strict=True))
    ]
    sheet = Table([*shown, *(title for title, _, _ in scores), *added, *spent], rows)
    sheet = with_settings(
        sheet, 2, distinguishing_settings([run.settings for run in runs], but=["rounds"])
    )
    return without_blanks(sheet, kept=added)


def _values(runs: Sequence[RunRecord], beside: Beside) -> list[dict[str, Value]]:
    added = {key: values for column in beside.columns for key, values in column.values.items()}
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
