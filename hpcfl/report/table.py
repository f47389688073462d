"""The one table type of reports: text for people, values for programs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Value = str | float | None


class Table(NamedTuple):
    """A table for people."""

    titles: Sequence[str]
    """Of the columns; lines are parted by a line feed."""
    rows: Sequence[Sequence[str]]
    """Cells; "-" where there is nothing."""
    captions: Sequence[str] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    """Cells (row, column) that are printed in bold."""


class Report(NamedTuple):
    """Tables for people, and the same values for programs."""

    sheets: Sequence[Table]
    values: Sequence[Mapping[str, Value]]
    """Rows of the same keys: full precision, fractions and plain units, None where absent."""


def without_blanks(sheet: Table, kept: Sequence[str] = ()) -> Table:
    """The table without its empty columns, except those to be kept, and without bold cells."""
    columns = [
        column
        for column in zip(sheet.titles, *sheet.rows, strict=True)
        if set(column[1:]) != {"-"} or column[0] in kept
    ]
    titles, *rows = zip(*columns, strict=True)
    return Table(titles, rows, sheet.captions)


def with_settings(sheet: Table, place: int, settings: Sequence[str]) -> Table:
    """The table with a column of the settings in which jobs differ, if there are any."""
    if not any(settings):
        return sheet
    lines = zip([sheet.titles, *sheet.rows], ["settings", *settings], strict=True)
    titles, *rows = [[*line[:place], text, *line[place:]] for line, text in lines]
    return Table(titles, rows, sheet.captions)
