"""Columns that compare the runs of a report with published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.columns import Column, of_runs
from hpcfl.tools.report.published import Published, find
from hpcfl.tools.report.table import Value

ACCURACIES = {
    "accuracy_last": "test accuracy after the last round",
    "accuracy_last10": "mean test accuracy of the last 10 epochs",
    "accuracy_last100": "mean test accuracy of the last 100 rounds",
}
"""Metrics of published numbers: their meaning."""


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
    firsts = [rows[0] if rows else None for rows in found]
    values: dict[str | None, Sequence[Value]] = {
        None: [printed(row) if row else None for row in firsts],
        "published": [fraction(row.value) if row else None for row in firsts],
        "published_std": [fraction(row.std) if row else None for row in firsts],
        "published_in": [places(rows) or None for rows in found],
    }
    columns = [
        Column("published\n%" if key is None else None, key, of_runs(runs, each), over_seeds="same")
        for key, each in values.items()
    ]
    return ComparisonColumns(tuple(columns), tuple(_captions(runs, found)))


def printed(row: Published) -> str:
    """A number as its paper prints it."""
    deviation = "" if row.std is None else f" +- {row.std:.2f}"
    return f"{row.value:.2f}{deviation}"


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
