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
    best: frozenset[tuple[int, int]] = frozenset()
    """Cells (row, column) that are printed in bold."""


class Report(NamedTuple):
    """Tables of text for people, and the same values for programs."""

    tables: Sequence[Table]
    values: Sequence[Mapping[str, Value]]
    """Rows of the same keys: fractions instead of percentages, not rounded, None where absent."""


def without_blanks(table: Table, kept: Sequence[str] = ()) -> Table:
    """The table without its empty columns, except those whose titles are in ``kept``.

    Bold cells are lost, as their columns may have another number then.
    """
    columns = [
        column
        for column in zip(table.titles, *table.rows, strict=True)
        if set(column[1:]) != {"-"} or column[0] in kept
    ]
    titles, *rows = zip(*columns, strict=True)
    return Table(titles, rows, table.captions)


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
    return Table(titles, rows, table.captions)
