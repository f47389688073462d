"""Columns that compare the runs of a report with published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from statistics import fmean, stdev
from typing import NamedTuple

from hpcfl.report.published import Published, find
from hpcfl.run_dir.record import RunRecord

ACCURACIES = {
    "accuracy_last": "test accuracy after the last round",
    "accuracy_last10": "mean test accuracy of the last 10 epochs",
    "accuracy_last100": "mean test accuracy of the last 100 rounds",
}
"""Metrics of published numbers: their meaning."""
_PUBLISHED = "published\n%"


class Column(NamedTuple):
    """A column that compares runs with something outside of them."""

    title: str
    cells: Sequence[str]
    """One a run."""
    values: Mapping[str, Sequence[str | float | None]]
    """For programs: keys, and a value a run."""
    numbers: Sequence[float | None] = ()
    """One a run, of which there is a mean over seeds; none where seeds have the cell in common."""
    show: str = "{}"
    """How that mean is shown."""

    @property
    def key(self) -> str:
        """Of the numbers, for programs: the first."""
        return next(iter(self.values))

    def known(self, group: Sequence[int]) -> list[float]:
        """The numbers of runs (by index), without those that have none: a mean is over these."""
        found = (self.numbers[index] for index in group)
        return [number for number in found if number is not None]

    def over_seeds(self, group: Sequence[int]) -> str:
        """The cell of runs (by index) that differ in the seed alone."""
        if not self.numbers:
            return self.cells[group[0]]
        known = self.known(group)
        some = 0 < len(known) < len(group)
        return spread(known, self.show) + (seeds_note(len(known), len(group)) if some else "")


class ComparisonColumns(NamedTuple):
    """Columns, and the captions under their table."""

    columns: tuple[Column, ...] = ()
    captions: tuple[str, ...] = ()

    def joined(self, other: ComparisonColumns) -> ComparisonColumns:
        """Both, the other's columns to the right."""
        return ComparisonColumns(self.columns + other.columns, self.captions + other.captions)


def with_published(runs: Sequence[RunRecord]) -> ComparisonColumns:
    """The accuracies that papers print for these set-ups; nothing where there are none."""
    found = [find(run.settings, *ACCURACIES) for run in runs]
    if not any(found):
        return ComparisonColumns()
    cells = [printed(rows[0]) if rows else "-" for rows in found]
    firsts = [rows[0] if rows else None for rows in found]
    values: dict[str, Sequence[str | float | None]] = {
        "published": [fraction(row.value) if row else None for row in firsts],
        "published_std": [fraction(row.std) if row else None for row in firsts],
        "published_in": [places(rows) or None for rows in found],
    }
    column = Column(_PUBLISHED, cells, values)
    return ComparisonColumns((column,), tuple(_captions(runs, found)))


def printed(row: Published) -> str:
    """A number as its paper prints it."""
    deviation = "" if row.std is None else f" +- {row.std:.2f}"
    return f"{row.value:.2f}{deviation}"


def spread(values: Sequence[float | None], show: str) -> str:
    """The mean +- sample standard deviation of values, if none is absent; else "-"."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    mean, std = mean_and_std(known)
    return show.format(mean) + ("" if std is None else f" +- {show.format(std)}")


def seeds_note(count: int, of: int) -> str:
    """The number of runs that a mean is over: " (n=2)", " (n=1 of 2)"; empty for one run."""
    if of == 1:
        return ""
    return f" (n={count})" if count == of else f" (n={count} of {of})"


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the sample standard deviation, None of a single value; NaN of a diverged one."""
    if not all(map(isfinite, values)):
        return sum(values) / len(values), nan if len(values) > 1 else None
    return fmean(values), stdev(values) if len(values) > 1 else None


def fraction(percent: float | None) -> float | None:
    """A percentage as it is printed, as a fraction without noise of the division."""
    return None if percent is None else round(percent / 100, 6)


def places(rows: Iterable[Published]) -> str:
    """As in "FedHBM table 3, FedHBM table 11"."""
    return ", ".join(f"{row.paper} table {row.table}" for row in rows)


def _captions(runs: Sequence[RunRecord], found: Sequence[Sequence[Published]]) -> Iterable[str]:
    """Lines about the tables that the numbers are printed in, and about runs that are shorter."""
    tables: dict[tuple[str, str, int | None], dict[str, None]] = {}
    ours: dict[tuple[str, str, int | None], set[int]] = {}
    notes: dict[str, None] = {}
    for run, rows in zip(runs, found, strict=True):
        for row in rows:
            source = row.paper, row.metric, row.rounds
            tables.setdefault(source, {})[row.table] = None
            ours.setdefault(source, set()).add(run.done)
            if row.note:
                notes[f"{row.paper}, table {row.table}, {run.algorithm}: {row.note}"] = None
    for source, places in tables.items():
        paper, metric, rounds = source
        after = " to ".join(
            _spaced(count) for count in sorted({min(ours[source]), max(ours[source])})
        )
        of = "" if rounds is None else f" of {_spaced(rounds)}"
        shorter = "" if ours[source] == {rounds} else f"; ours after {after}{of} rounds"
        plural = "tables" if len(places) > 1 else "table"
        yield f"published: {paper}, {plural} {', '.join(places)}: {ACCURACIES[metric]}{shorter}"
    yield from notes


def _spaced(count: int) -> str:
    return f"{count:,}".replace(",", " ")
