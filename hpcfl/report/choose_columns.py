"""Choose, order and rename the columns of a report: ``--columns "algorithm=Method,accuracy"``.

A key of the jobs, such as ``local.lr``, is a column too.  A cell is empty where the runs of its row
differ in the key.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple, Self

from hpcfl.errors import JobError
from hpcfl.job.registry import suggestion
from hpcfl.job.settings import written
from hpcfl.report.table import Caption, Report, Table, column_name, with_columns


class ChosenColumn(NamedTuple):
    """A column, and its new title."""

    name: str
    title: str | None
    """None: the title that it has."""

    @classmethod
    def parse(cls, text: str) -> list[Self]:
        """The columns of an option: "NAME=TITLE,NAME,...".

        Raises:
            JobError: a name or a title is empty.
        """
        found = []
        for part in text.split(","):
            name, equals, title = (word.strip() for word in part.partition("="))
            if not name or (equals and not title):
                raise JobError(
                    f"--columns: found {part!r} in {text!r}, expected NAME or NAME=TITLE"
                )
            found.append(cls(name, title if equals else None))
        return found


def choose_columns(report: Report, chosen: Sequence[ChosenColumn], *, values: bool) -> Report:
    """The report with the chosen columns alone, in their order.

    A table keeps those of them that it has, and is left out where it has none.  So is a
    caption that is about columns (``Caption``) of which none is shown.

    Args:
        report: any.
        chosen: the columns.
        values: whether the names are those of the values for programs (CSV), else of the tables.

    Raises:
        JobError: no table has a column of that name, and no job such a key; or two columns of CSV
            have one title.
    """
    titles = [title for table in report.tables for title in table.titles]
    known = list(report.values[0] if values else dict.fromkeys(map(column_name, titles)))
    jobs = report.settings if values else [job for table in report.tables for job in table.settings]
    keys = {key for job in jobs for key in job}
    for name, _ in chosen:
        if name not in known and name not in keys:
            hint = suggestion(name, [*known, *keys])
            also = ", or a key of the jobs that all runs of a row agree in" if keys else ""
            raise JobError(f"--columns: found {name!r}, expected of {', '.join(known)}{also}{hint}")
    if values:
        _refuse_repeated([title or name for name, title in chosen])
        settings = report.settings or [{}] * len(report.values)
        rows = [
            {title or name: row[name] if name in row else own.get(name) for name, title in chosen}
            for row, own in zip(report.values, settings, strict=True)
        ]
        return report._replace(values=rows)
    tables = [made for table in report.tables if (made := _choose(table, chosen)).titles]
    return report._replace(tables=tables)


def _refuse_repeated(titles: Sequence[str]) -> None:
    for place, title in enumerate(titles):
        if title in titles[:place]:
            raise JobError(
                f"--columns: found {title!r} twice, expected a title of its own for each in CSV"
            )


def _choose(table: Table, chosen: Sequence[ChosenColumn]) -> Table:
    table = _with_keys(table, [name for name, _ in chosen])
    names = [column_name(title) for title in table.titles]
    places = [
        (place, title)
        for name, title in chosen
        for place, found in enumerate(names)
        if found == name
    ]
    made = with_columns(table, [place for place, _ in places])
    shown = {name for name, _ in chosen}
    hidden = set(names) - shown
    captions = [text for text in table.captions if _applies(text, shown, hidden)]
    if "settings" in hidden and not shown & {"run", *_keys(table)} and _repeats(table, names):
        captions.append("rows of one name differ in their settings, a column that is not shown")
    made = made._replace(captions=captions)
    titles = [new or old for (_, new), old in zip(places, made.titles, strict=True)]
    return made._replace(titles=titles, first_titles=made.titles)


def _applies(caption: str, shown: Set[str], hidden: Set[str]) -> bool:
    """Whether a caption is about the whole table, or about a column that is shown."""
    about = set(map(column_name, caption.columns)) if isinstance(caption, Caption) else set()
    return bool(about & shown) or not about & hidden


def _keys(table: Table) -> set[str]:
    return {key for settings in table.settings for key in settings}


def _with_keys(table: Table, names: Sequence[str]) -> Table:
    """The table with a column more for each of these names that is a key of the jobs alone."""
    keys = _keys(table) - set(map(column_name, table.titles))
    new = [name for name in names if name in keys]
    rows = [
        [*row, *(written(settings[key]) if key in settings else "-" for key in new)]
        for row, settings in zip(table.rows, table.settings or [{}] * len(table.rows), strict=True)
    ]
    return table._replace(titles=[*table.titles, *new], rows=rows)


def _repeats(table: Table, names: Sequence[str]) -> bool:
    """Whether two rows have the same algorithm."""
    if "algorithm" not in names:
        return False
    column = [row[names.index("algorithm")] for row in table.rows]
    return len(set(column)) < len(column)
