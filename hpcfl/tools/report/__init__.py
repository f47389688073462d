"""Tables of finished runs: layouts, and formats as text, Markdown, LaTeX and CSV.

by_run      a row a run, and the means over seeds
by_seed     the means over seeds alone
as_papers   a row an algorithm, a column a set-up, published numbers beside ours
"""

from hpcfl.tools.report.formats import plain, tables, to_csv, to_latex, to_markdown
from hpcfl.tools.report.papers import as_papers
from hpcfl.tools.report.runs import by_run, by_seed
from hpcfl.tools.report.table import Report, Table

__all__ = [
    "Report",
    "Table",
    "as_papers",
    "by_run",
    "by_seed",
    "plain",
    "tables",
    "to_csv",
    "to_latex",
    "to_markdown",
]
