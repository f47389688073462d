"""Hold the tables of a report: as text for people, and as values for programs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Value = str | float | None


class Table(NamedTuple):
    """A table of text."""

    titles: Sequence[str]
    """Of the columns; a line feed separates the lines of a title."""
    rows: Sequence[Sequence[str]]
    """Cells; "-" where there is nothing."""
    captions: Sequence[str] = ()
    """Lines below it."""
    best: frozenset[tuple[int, int]] = frozenset()
    """Cells (row, column) that are printed in bold."""
    remarks: Sequence[str] = ()
    """Lines below the captions; in LaTeX, comments, as a paper has them elsewhere."""


class Report(NamedTuple):
    """Tables of text for people, and the same values for programs."""

    tables: Sequence[Table]
    values: Sequence[Mapping[str, Value]]
    """Rows of the same keys: fractions instead of percentages, not rounded, None where absent."""


def without_blanks(table: Table, kept: Sequence[str] = ()) -> Table:
    """The table without its empty columns, except those whose titles are in ``kept``."""
    return with_columns(
        table,
        [
            index
            for index, column in enumerate(zip(table.titles, *table.rows, strict=True))
            if set(column[1:]) != {"-"} or column[0] in kept
        ],
    )


def with_columns(table: Table, chosen: Sequence[int]) -> Table:
    """The table with these columns (by index), in this order."""
    best = {(row, place) for place, c in enumerate(chosen) for row, b in table.best if b == c}
    return table._replace(
        titles=[table.titles[c] for c in chosen],
        rows=[[row[c] for c in chosen] for row in table.rows],
        best=frozenset(best),
    )


def with_settings(table: Table, position: int, settings: Sequence[str]) -> Table:
    """The table with a column of the settings in which jobs differ, if there are any.

    Args:
        table: whose bold cells are lost, as their columns may have another number then.
        position: of the new column.
        settings: a cell for each row.
    """
    if not any(settings):
        return table
    lines = zip([table.titles, *table.rows], ["settings", *settings], strict=True)
    titles, *rows = [[*line[:position], text, *line[position:]] for line, text in lines]
    return Table(titles, rows, table.captions, remarks=table.remarks)
