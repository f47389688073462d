"""Lay out a table of means over seeds: a row for the runs that differ in the seed alone."""

from collections.abc import Sequence
from typing import NamedTuple

from hpcfl.job.settings import SEED, distinguishing_settings
from hpcfl.report.columns import (
    MEAN_OF_LAST,
    SEED_COLUMNS,
    NumberValue,
    diverged_note,
    number_values,
    optional_scores,
    run_captions,
)
from hpcfl.report.compared_runs import ComparedRuns
from hpcfl.report.comparison import Column, ComparisonColumns, mean_and_std, spread
from hpcfl.report.seed_groups import seed_captions, seed_groups
from hpcfl.report.table import Report, Table, Value, with_settings, without_blanks
from hpcfl.run_dir.record import RunRecord

CAPTION = "+-: sample standard deviation over the finished runs of a job with several seeds"


class SeedTable(NamedTuple):
    """A table of means and sample standard deviations over seeds."""

    table: Table
    several: bool
    """Whether some job was run with several seeds."""


def by_seed(runs: Sequence[RunRecord], comparison: ComparisonColumns | None = None) -> Report:
    """A table of means over the finished runs, which the column `seeds` counts.

    The rounds to a target are also taken from unfinished runs that reached it, as no later round
    changes them.  A cell whose mean is not over all runs of the job shows over how many it is.
    The values for programs are means, and standard deviations where two seeds or more finished.
    """
    comparison, compared = comparison or ComparisonColumns(), ComparedRuns.of(runs)
    runs = compared.runs
    table = seed_table(runs, comparison).table
    captions = [*table.captions, *compared.caption("best"), *comparison.captions]
    captions += [*seed_captions(runs, seed_groups(runs)), *run_captions(runs)]
    table = table._replace(captions=captions)
    return Report([table], _values(runs, comparison))


def seed_table(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> SeedTable:
    """The table, whose only caption explains the standard deviations; the caller adds others."""
    groups = seed_groups(runs)
    scores = [*SEED_COLUMNS, *optional_scores(runs)]
    added = [column.title for column in comparison.columns]
    rows = []
    for group in groups:
        members = _finished(runs, group)
        count = f"{len(members)}" + ("" if len(members) == len(group) else f" of {len(group)}")
        count += diverged_note([runs[index] for index in group])
        alike = _alike(runs, members)
        cells = [
            spread([value(runs[index]) for index in members], show)
            if alike or title != MEAN_OF_LAST
            else "-"
            for title, value, show in scores
        ]
        cells += [column.over_seeds(group) for column in comparison.columns]
        rows.append([runs[group[0]].algorithm, count, *cells])
    titles = ["algorithm", "seeds", *(title for title, _, _ in scores), *added]
    several = any(len(group) > 1 for group in groups)
    table = Table(titles, rows, [CAPTION] if several else [])
    table = with_settings(table, 1, _settings(runs, groups))
    return SeedTable(without_blanks(table, kept=added), several)


def _alike(runs: Sequence[RunRecord], members: Sequence[int]) -> bool:
    """Whether the runs evaluate as many last rounds."""
    return len({runs[index].window for index in members}) < 2


def _finished(runs: Sequence[RunRecord], group: Sequence[int]) -> list[int]:
    return [index for index in group if runs[index].finished]


def _settings(runs: Sequence[RunRecord], groups: Sequence[Sequence[int]]) -> list[str]:
    differing = distinguishing_settings([run.settings for run in runs], but=[SEED])
    return [differing[group[0]] for group in groups]


def _values(runs: Sequence[RunRecord], comparison: ComparisonColumns) -> list[dict[str, Value]]:
    groups, numbers = seed_groups(runs), number_values(runs)
    return [
        {
            "algorithm": runs[group[0]].algorithm,
            "rounds": runs[group[0]].rounds,
            "seeds": len(group),
            "seeds_finished": len(_finished(runs, group)),
            "seeds_diverged": sum(runs[index].diverged for index in group),
            "chosen_on": runs[group[0]].chosen_on,
            **_means(runs, _finished(runs, group), numbers),
            **{
                key: value
                for column in comparison.columns
                for key, value in _of_column(group, column).items()
            },
            "settings": settings,
        }
        for group, settings in zip(groups, _settings(runs, groups), strict=True)
    ]


def _means(
    runs: Sequence[RunRecord], members: Sequence[int], numbers: Sequence[NumberValue]
) -> dict[str, Value]:
    """Mean and standard deviation of each number over finished runs, by KEY and KEY_std.

    None where a run lacks the number: a mean over fewer runs would compare different seeds; and
    where it is a mean over the last rounds, but not over as many in each run.
    """
    means: dict[str, Value] = {}
    alike = _alike(runs, members)
    for key, value in numbers:
        known = [number for index in members if (number := value(runs[index])) is not None]
        complete = len(known) == len(members) > 0 and (alike or key != "mean_accuracy")
        means[key], means[f"{key}_std"] = mean_and_std(known) if complete else (None, None)
    return means


def _column_means(group: Sequence[int], column: Column) -> dict[str, Value]:
    """Mean, standard deviation and count of a column's numbers, by KEY, KEY_std and KEY_n.

    Over the runs that have a number.  Texts of several runs are joined.
    """
    known = column.known(group)
    mean, std = mean_and_std(known) if known else (None, None)
    texts: dict[str, Value] = {}
    for key, values in column.values.items():
        if key != column.key:
            distinct = dict.fromkeys(str(text) for index in group if (text := values[index]))
            texts[key] = "; ".join(distinct) or None
    return {column.key: mean, f"{column.key}_std": std, f"{column.key}_n": len(known), **texts}


def _of_column(group: Sequence[int], column: Column) -> dict[str, Value]:
    """The values of a column for the runs of a job; a published number is the same for all."""
    if column.numbers:
        return _column_means(group, column)
    return {key: values[group[0]] for key, values in column.values.items()}
