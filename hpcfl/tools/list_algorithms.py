"""List the algorithms, by the docstrings of their files: none is imported, nor torch."""

import ast
from importlib.resources import files
from inspect import cleandoc
from shutil import get_terminal_size

from rich.box import ASCII2
from rich.table import Table

from hpcfl.algorithms import ALGORITHMS

NARROWEST, WIDEST = 80, 100  # columns of a table


def algorithms_table() -> Table:
    """A row for each algorithm: what it does, and its paper."""
    table = titled("algorithm.name", "what, paper")
    for name in ALGORITHMS:
        source = files("hpcfl.algorithms").joinpath(f"{name}.py").read_text("ascii")
        text = ast.get_docstring(ast.parse(source)) or ""
        what = text.partition("\n\n")[0]
        table.add_row(name, f"{' '.join(what.split())}\n{reference(text)}")
    table.caption = "hpcfl list NAME: its settings, what it sends in a round and what it keeps"
    return table


def reference(docstring: str) -> str:
    """The paper: the last paragraph of a file's docstring before the departures from it."""
    paragraphs = cleandoc(docstring).split("\n\n")
    departures = next((k for k, p in enumerate(paragraphs) if p.startswith("Departures")), None)
    return " ".join(paragraphs[:departures][-1].split())


def titled(*columns: str) -> Table:
    """A table without rows, whose last column is the one that wraps."""
    table = Table(box=ASCII2, caption_justify="left", show_lines=True)
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1], overflow="fold")
    return table


def table_width() -> int:
    """The columns of a table: as the terminal has; without one the fewest."""
    return min(max(get_terminal_size((0, 0)).columns, NARROWEST), WIDEST)
