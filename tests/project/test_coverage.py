"""docs/coverage.md has every method of hpcfl, and claims none that hpcfl has not."""

import re
from pathlib import Path

from hpcfl.algorithms import ALGORITHMS
from tests.project.pages import section

PAGE = (Path(__file__).parents[2] / "docs/coverage.md").read_text()
COLUMNS = ["hpcfl", "FL-bench", "PFLlib", "FL-Simulator", "pfl-research"]


def table(heading):
    """The rows of a section's table, the heads first, each a list of cells."""
    lines = re.findall(r"^\| ?(.*?) ?\|$", section(PAGE, heading), re.MULTILINE)
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return head, rows


def named(rows):
    """The names in the column of hpcfl."""
    return [name for _, cell, *_ in rows for name in re.findall("`([a-z0-9_]+)`", cell)]


def test_every_row_has_every_simulator():
    for heading in ("Methods of hpcfl", "Methods that hpcfl has not", "Other features"):
        head, rows = table(heading)
        assert head[1:] == COLUMNS
        assert [row[0] for row in rows if len(row) != len(head) or not row[0]] == []
        assert [row[0] for row in rows if not any(row[1:])] == []


def test_every_method_has_one_row_and_no_other_is_claimed():
    assert sorted(named(table("Methods of hpcfl")[1])) == sorted(ALGORITHMS)


def test_no_method_of_hpcfl_is_among_those_that_it_has_not():
    _, rows = table("Methods that hpcfl has not")
    assert [row[0] for row in rows if row[1]] == []
    names = {
        re.sub(r"\W", "", name).lower() for row in rows for cell in row for name in cell.split(",")
    }
    assert names & {name.replace("_", "") for name in ALGORITHMS} == set()


def test_every_footnote_is_there():
    written = re.findall(r"^\[\^(\w+)\]: ", PAGE, re.MULTILINE)
    assert sorted(set(re.findall(r"\[\^(\w+)\](?!:)", PAGE))) == sorted(written)
