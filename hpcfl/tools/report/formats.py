"""Format reports as text, Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from itertools import groupby, zip_longest
from shutil import get_terminal_size
from typing import Literal

from rich.box import ASCII2
from rich.table import Table as RichTable
from rich.text import Text

from hpcfl.errors import one_line, printable
from hpcfl.io.table import UNLIMITED, least_width, render_tables
from hpcfl.tools.report.table import Report, Table, Value

_WIDE = 48  # columns of the settings, which are wrapped
# Titles of columns of text.
_LEFT = ("run", "algorithm", "settings")

# Characters that LaTeX does not print as they are, or not in its OT1 encoding.
_ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "[": "{[}", "*": "{*}",  # at the beginning of a row, options of the \\ above it
    "+-": r"$\pm$", **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip
_ESCAPED = re.compile("|".join(map(re.escape, _ESCAPES)))
# Characters that Markdown does not print as they are: everywhere, and where a line begins.
_MARKDOWN = re.compile(r"[\\`*<|]|^[>#]")
_FORMULA = ("=", "+", "-", "@")  # how a formula of a spreadsheet begins


def tables(report: Report) -> list[RichTable]:
    """The tables as they are drawn on a terminal; sizes in powers of 1000."""
    return [drawn(table) for table in report.tables]


def drawn(table: Table) -> RichTable:
    """A table as a terminal shows it; only the column of settings may be wrapped."""
    made = RichTable(box=ASCII2)
    made.header_style = ""
    titles, *rows = [[*map(printable, line)] for line in (table.titles, *table.rows)]
    for title, *cells in zip(titles, *rows, strict=True):
        if title == "settings":
            pairs = (pair for text in (title, *cells) for pair in re.split("(?<=,) ", text))
            needed = max(map(len, pairs))  # a key stays with its value
            made.add_column(Text(title), min_width=needed, max_width=max(needed, _WIDE))
        else:
            needed = max(len(line) for text in (title, *cells) for line in text.split("\n"))
            made.add_column(Text(title), justify=_side(title), min_width=needed)
    for r, row in enumerate(rows):
        made.add_row(
            *(Text(cell, "bold" if (r, c) in table.best else "") for c, cell in enumerate(row))
        )
    return made


def _side(title: str) -> Literal["left", "right"]:
    return "left" if title in _LEFT else "right"


def plain(report: Report, *, styled: bool = False) -> str:
    """The tables in plain ASCII, as wide as the terminal where numbers need no more.

    ``styled``: the best of a column is bold, by the escape codes of a terminal.
    """
    made = tables(report)
    width = max(get_terminal_size((UNLIMITED, 0)).columns, *map(least_width, made))
    lines = []
    for table, shown in zip(report.tables, made, strict=True):
        lines += [
            render_tables(shown, width=width, styled=styled),
            *map(printable, [*table.captions, *table.remarks]),
        ]
    return "".join(f"{line}\n" for line in lines)


def to_markdown(report: Report) -> str:
    """The tables in Markdown, captions as lists."""
    return "\n".join(part for table in report.tables for part in _marked(table))


def _marked(table: Table) -> list[str]:
    lines = [
        [_literal(title) for title in table.titles],
        [":--" if title in _LEFT else "--:" for title in table.titles],
        *(
            [
                f"**{_literal(cell)}**" if (r, c) in table.best else _literal(cell)
                for c, cell in enumerate(row)
            ]
            for r, row in enumerate(table.rows)
        ),
    ]
    parts = ["".join(f"| {' | '.join(line)} |\n" for line in lines)]
    if below := [*table.captions, *table.remarks]:
        parts.append("".join(f"- {_literal(line)}\n" for line in below))
    return parts


def _literal(text: str) -> str:
    """A text for Markdown, in one line, that is printed as it is."""
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", text.replace("\n", " "))


def to_latex(report: Report) -> str:
    r"""The tables in LaTeX, for \input in a document that loads booktabs."""
    return "\n".join(["% needs \\usepackage{booktabs}\n", *map(_typeset, report.tables)])


def _typeset(table: Table) -> str:
    columns = "".join(_side(title)[0] for title in table.titles)
    rows = [
        " & ".join(
            rf"\textbf{{{escaped(cell)}}}" if (r, c) in table.best else escaped(cell)
            for c, cell in enumerate(row)
        )
        for r, row in enumerate(table.rows)
    ]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        *(f"    {line}" for line in _heads(table.titles)),
        r"    \midrule",
        *(rf"    {row} \\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *(rf"  \caption{{{'; '.join(map(escaped, table.captions))}}}" for _ in table.captions[:1]),
        r"\end{table}",
        *(f"% {printable(one_line(line))}" for line in table.remarks),
    ]
    return "".join(f"{line}\n" for line in lines)


def _heads(titles: Sequence[str]) -> list[str]:
    r"""The lines of the titles, at the bottom; above the last, equal neighbours are one cell."""
    lines = list(zip_longest(*(title.split("\n")[::-1] for title in titles), fillvalue=""))[::-1]
    heads = []
    for line in lines[:-1]:
        cells, rules, place = [], [], 1
        for text, same in groupby(line):
            width = len(list(same))
            if text and width > 1:
                cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(text)}}}")
                rules.append(rf"\cmidrule(lr){{{place}-{place + width - 1}}}")
            else:
                cells += [escaped(text)] * width
            place += width
        heads += [rf"{' & '.join(cells)} \\", *([" ".join(rules)] if rules else [])]
    return [*heads, rf"{' & '.join(map(escaped, lines[-1]))} \\"]


def escaped(text: str) -> str:
    r"""A text for LaTeX: its special characters escaped, +- as \pm."""
    return "--" if text == "-" else _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)


def to_csv(report: Report) -> str:
    """The values as CSV; absent values are empty.

    A text that a spreadsheet would take for a formula has an apostrophe in front of it.
    """
    out = io.StringIO()
    keys = list(report.values[0])
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, keys))
    writer.writerows([_cell(row[key]) for key in keys] for row in report.values)
    return out.getvalue()


def _cell(value: Value) -> Value:
    if not isinstance(value, str):
        return value
    text = printable(value)  # a carriage return, which is not quoted, would begin another row
    return f"'{text}" if text.startswith(_FORMULA) else text
