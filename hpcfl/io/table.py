"""Render tables as text."""

from io import StringIO

from rich.console import Console, RenderableType


def render_tables(*tables: RenderableType, width: int) -> str:
    """Tables as text in ASCII, one below the other, of ``width`` columns at most."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None)
    for table in tables:
        console.print(table, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
