"""Lay out a row for the runs that differ by the seed alone: mean +- sample standard deviation."""

from collections.abc import Sequence
from typing import NamedTuple

from hpcfl.job.settings import SEED, distinguishing_settings, group_by_seed
from hpcfl.report.columns import DIVERGED, NUMBERS, OVER_SEEDS, count_diverged, optional_scores
from hpcfl.report.comparison import Column, ComparisonColumns, mean_and_std, spread
from hpcfl.report.table import Report, Table, Value, with_settings, without_blanks
from hpcfl.run_dir.record import RunRecord

CAPTION = "+-: sample standard deviation over the finished runs of a job with several seeds"


class SeedSheet(NamedTuple):
    """Means over seeds."""

    sheet: Table
    several: bool
    """Whether some job was run with several seeds."""


def by_seed(runs: Sequence[RunRecord], comparison: ComparisonColumns | None = None) -> Report:
    """The means alone; unfinished runs are left out, as the column `seeds` shows.

    A target that an unfinished run has reached counts: no later round changes that.  Where the mean
    is not of all runs of the job, its cell says of how many.  The values are means, and standard
    deviations where two seeds or more finished.
    """
    comparison = comparison or ComparisonColumns()
    sheet = seed_sheet(runs, comparison).sheet
    captions = [*sheet.captions, *comparison.captions]
    captions += [DIVERGED] if any(run.diverged for run in runs) else []
    sheet = sheet._replace(captions=captions)
    return Report([sheet], _values(runs, comparison))


def seed_sheet(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> SeedSheet:
    """The table, with no caption but for its standard deviations."""
    groups = group_by_seed([run.settings for run in runs])
    scores = [*OVER_SEEDS, *optional_scores(runs)]
    added = [column.title for column in comparison.columns]
    rows = []
    for group in groups:
        members = _finished(runs, group)
        count = f"{len(members)}" + ("" if len(members) == len(group) else f" of {len(group)}")
        count += count_diverged([runs[index] for index in group])
        cells = [
            spread([value(runs[index]) for index in members], show) for _, value, show in scores
        ]
        cells += [column.over_seeds(group) for column in comparison.columns]
        rows.append([runs[group[0]].algorithm, count, *cells])
    titles = ["algorithm", "seeds", *(title for title, _, _ in scores), *added]
    several = any(len(group) > 1 for group in groups)
    sheet = Table(titles, rows, [CAPTION] if several else [])
    sheet = with_settings(sheet, 1, _settings(runs, groups))
    return SeedSheet(without_blanks(sheet, kept=added), several)


def _finished(runs: Sequence[RunRecord], group: Sequence[int]) -> list[int]:
    return [index for index in group if runs[index].finished]


def _settings(runs: Sequence[RunRecord], groups: Sequence[Sequence[int]]) -> list[str]:
    differing = distinguishing_settings([run.settings for run in runs], but=[SEED])
    return [differing[group[0]] for group in groups]


def _values(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> list[dict[str, Value]]:
    groups = group_by_seed([run.settings for run in runs])
    return [
        {
            "algorithm": runs[group[0]].algorithm,
            "rounds": runs[group[0]].rounds,
            "seeds": len(group),
            "seeds_finished": len(_finished(runs, group)),
            "seeds_diverged": sum(runs[index].diverged for index in group),
            **_means(runs, _finished(runs, group)),
            **{
                key: value
                for column in comparison.columns
                for key, value in _of_column(group, column).items()
            },
            "settings": settings,
        }
        for group, settings in zip(groups, _settings(runs, groups), strict=True)
    ]


def _means(runs: Sequence[RunRecord], members: Sequence[int]) -> dict[str, Value]:
    """Of the finished runs: the mean and the deviation of each number, under its key and _std."""
    means: dict[str, Value] = {}
    for key, value in NUMBERS:
        known = [found for index in members if (found := value(runs[index])) is not None]
        whole = len(known) == len(members) > 0
        means[key], means[f"{key}_std"] = mean_and_std(known) if whole else (None, None)
    return means


def _compared(group: Sequence[int], column: Column) -> dict[str, Value]:
    """The same of a column's numbers, of the runs that have one: so many, under its key and _n."""
    known = column.known(group)
    mean, std = mean_and_std(known) if known else (None, None)
    texts: dict[str, Value] = {}
    for key, values in column.values.items():
        if key != column.key:
            told = dict.fromkeys(str(found) for index in group if (found := values[index]))
            texts[key] = "; ".join(told) or None
    return {column.key: mean, f"{column.key}_std": std, f"{column.key}_n": len(known), **texts}


def _of_column(group: Sequence[int], column: Column) -> dict[str, Value]:
    """The values of a column for the runs of a job; all seeds share a published number."""
    if column.numbers:
        return _compared(group, column)
    return {key: values[group[0]] for key, values in column.values.items()}
