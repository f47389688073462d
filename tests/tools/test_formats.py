"""Tables as text, Markdown, LaTeX and CSV."""

import csv
import io
import re

import pytest
from rich.console import Console

from hpcfl.tools.report import Report, Table, plain, tables, to_csv, to_latex, to_markdown
from hpcfl.tools.report.formats import escaped

MARKS = ["a|b", "[red]", "Acc [/x]", "[bold", ":smile:", "*x*", "<b>", "back\\slash", "_#%&$~^{}"]


@pytest.mark.parametrize("text", MARKS)
def test_titles_and_cells_are_printed_as_they_are(text):
    """Not as marks of rich, Markdown or LaTeX; in bold, too."""
    rows = [[text, "80"], ["fedavg", "79"]]
    table = Table([text, "accuracy\n%"], rows, [text], best=frozenset({(0, 0)}))
    report = Report([table], [{text: text, "accuracy": "80"}])
    *drawn, caption = plain(report).splitlines()
    assert sum(text in line for line in drawn) == 2
    assert len(set(map(len, drawn))) == 1
    assert caption == text
    console = Console(width=100, file=io.StringIO())
    console.print(*tables(report))  # in a console of the user's
    assert console.file.getvalue().count(text) == 2
    lines = to_markdown(report).splitlines()
    head, _, first = lines[:3]
    literal = re.sub(r"([\\*<|])", r"\\\1", text)
    assert head == f"| {literal} | accuracy % |"
    assert first == f"| **{literal}** | 80 |"
    assert lines[-1] == f"- {literal}"
    body = to_latex(report).splitlines()
    assert f"    {escaped(text)} & \\% \\\\" in body
    assert f"    \\textbf{{{escaped(text)}}} & 80 \\\\" in body
    assert list(csv.reader(io.StringIO(to_csv(report)))) == [[text, "accuracy"], [text, "80"]]


@pytest.mark.parametrize("begin", "=+-@")
def test_no_text_of_a_csv_is_a_formula_of_a_spreadsheet(begin):
    name = f"{begin}HYPERLINK(A1)"
    values = [
        {"run": name, name: -0.5, "loss": None},
        {"run": f"a{begin}b\r{name}", name: 1e-9, "loss": -2.0},
    ]
    read = list(csv.reader(io.StringIO(to_csv(Report([], values)), newline="")))
    assert read == [
        ["run", f"'{name}", "loss"],
        [f"'{name}", "-0.5", ""],
        [f"a{begin}b {name}", "1e-09", "-2.0"],
    ]


def test_a_row_of_latex_does_not_begin_with_an_option_of_the_line_above():
    assert (escaped("[1pt]"), escaped("*")) == ("{[}1pt]", "{*}")


def test_the_best_is_bold():
    rows = [["a", "0.4"], ["b", "0.5"]]
    table = Table(["algorithm", "test\nloss"], rows, best=frozenset({(0, 1)}))
    report = Report([table], [])
    assert to_markdown(report).count("**") == 2
    assert "**0.4**" in to_markdown(report)
    assert r"\textbf{0.4}" in to_latex(report)
    assert "\x1b[1m" in plain(report, styled=True)
    assert "\x1b" not in plain(report)
