"""Print tables as text: every command's tables are drawn here."""

from io import StringIO
from typing import Literal

from rich.console import Console, RenderableType
from rich.measure import Measurement

UNLIMITED = 1000  # columns: no cell is wrapped


def least_width(table: RenderableType) -> int:
    """The number of columns that a table needs at least."""
    console = _console(UNLIMITED)
    return Measurement.get(console, console.options, table).minimum


def render_tables(*tables: RenderableType, width: int = UNLIMITED, styled: bool = False) -> str:
    """Tables as text in ASCII, one below the other, of ``width`` columns at most.

    Titles and cells are printed as they are: brackets and colons in a user's names mean nothing.

    ``styled``: with the escape codes of a terminal, as for bold cells.
    """
    out = StringIO()
    console = _console(width, out, styled=styled)
    for table in tables:
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _console(width: int, out: StringIO | None = None, *, styled: bool = False) -> Console:
    """A console that takes no text as rich's markup or as the name of an emoji."""
    system: Literal["standard"] | None = "standard" if styled else None
    return Console(
        file=out, width=width, color_system=system, force_terminal=styled, markup=False,
        emoji=False, highlight=False,
    )  # fmt: skip
