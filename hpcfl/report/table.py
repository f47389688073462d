"""Hold the tables of a report: as text for people, and as values for programs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

Value = str | float | None
_UNITS = ("%", "x", "@round")  # words that end a title


class Caption(str):
    """A line below a table that is about some of its columns."""

    columns: Sequence[str]
    """Their titles; a title that the table does not have is ignored."""

    def __new__(cls, text: str, *columns: str) -> Self:
        """A line about columns of these titles."""
        made = super().__new__(cls, text)
        made.columns = columns
        return made


def column_name(title: str) -> str:
    """The name of a column: its title in one line, without the unit."""
    words = title.replace("\n", " ").split(" ")
    while len(words) > 1 and words[-1] in _UNITS:
        words.pop()
    return " ".join(words)


class Table(NamedTuple):
    """A table of text."""

    titles: Sequence[str]
    """Of the columns; a line feed separates the lines of a title."""
    rows: Sequence[Sequence[str]]
    """Cells; "-" where there is nothing."""
    captions: Sequence[str] = ()
    """Lines below it; one that is a ``Caption`` is printed while one of its columns is shown."""
    best: frozenset[tuple[int, int]] = frozenset()
    """Cells (row, column) that are printed in bold."""
    first_titles: Sequence[str] = ()
    """The titles before columns were renamed; none if they were not."""
    settings: Sequence[Mapping[str, Any]] = ()
    """For each row the keys that have one value in all its jobs, which may be chosen as columns;
    none if rows are no jobs."""

    @property
    def kinds(self) -> Sequence[str]:
        """The titles that say how a column is laid out."""
        return self.first_titles or self.titles


class Report(NamedTuple):
    """Tables of text for people, and the same values for programs."""

    tables: Sequence[Table]
    values: Sequence[Mapping[str, Value]]
    """Rows of the same keys: fractions instead of percentages, not rounded, None where absent."""
    settings: Sequence[Mapping[str, Any]] = ()
    """For each row of the values, as ``Table.settings``."""


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
    return Table(titles, rows, table.captions)
