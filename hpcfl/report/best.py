"""Mark the best numbers of the columns of scores, where the runs are of one data set and model."""

import re
from collections.abc import Sequence

from hpcfl.report.published import set_up
from hpcfl.report.table import Table
from hpcfl.run_dir.record import RunRecord

# The columns of the user's metrics are not among these: whether more of one is better, only its
# user knows.
_HIGHER = ("accuracy\n%", "test\n%", "best\n%", "best\n% @round", "mean of\nlast %",
           "last\n100 %", "validation\n%", "top 5\n%", "clients\nmean %", "worst\ndecile %",
           "local models\nmean %", "speed-up\nx")  # fmt: skip
_LOWER = ("test\nloss", "validation\nloss", "objective")
_TARGET = "rounds\nto "  # the beginning of a title; fewer are better
_NUMBER = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?(?= |$)")


def with_best(table: Table, runs: Sequence[RunRecord], competes: Sequence[bool]) -> Table:
    """The table with its best numbers, and their equals as printed, in ``Table.best``.

    Args:
        table: a row for each run, or group of runs.
        runs: all runs; of several data sets or models, no number is marked.
        competes: whether a row may have the best: all its runs finished, and none diverged.
    """
    set_ups = [set_up(run.settings) for run in runs]
    if len({(own["data"], own["model"]) for own in set_ups}) > 1:
        return table
    best = set()
    for column, title in enumerate(table.titles):
        numbers = {
            row: float(found[0])
            for row, cells in enumerate(table.rows)
            if competes[row]
            and " of " not in cells[column]  # a mean of some seeds
            and (found := _NUMBER.match(cells[column]))
        }
        if len(numbers) < 2:
            continue
        if title in _HIGHER:
            top = max(numbers.values())
        elif title in _LOWER or title.startswith(_TARGET):
            top = min(numbers.values())
        else:
            continue
        best |= {(row, column) for row, number in numbers.items() if number == top}
    return table._replace(best=frozenset(best))
