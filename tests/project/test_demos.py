"""The tables of the demos of seconds in the documents are what their sweeps compute."""

import re
from decimal import Decimal
from pathlib import Path

import pytest

import hpcfl
from hpcfl.tools.sweep.grid import read_sweep
from tests.project.pages import section
from tests.real_data import real

ROOT = Path(__file__).parents[2]
PAPERS = (ROOT / "docs/papers.md").read_text()

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_process")]


@pytest.fixture
def curves(tmp_path):
    """Point of a sweep -> round -> test loss."""

    def play(sweep, *overrides):
        found = {}
        for point in read_sweep(ROOT / "jobs" / sweep, overrides).points:
            result = hpcfl.run(point.loaded.tree, out=tmp_path / point.name)
            lines = (line for line in result.log if "test_loss" in line)
            found[point.name] = {line["round"]: line["test_loss"] for line in lines}
        return found

    return play


def as_printed(text):
    """A number, to half a unit of the last digit that is printed."""
    unit = 10.0 ** Decimal(text).as_tuple().exponent
    return pytest.approx(float(text), rel=0, abs=0.501 * unit)


def rows_of(text):
    return [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]


def test_every_method_on_two_quadratics(curves):
    text = section((ROOT / "docs/results.md").read_text(), "Two quadratics: every method")
    text = text[text.index("| at the optimum") : text.index("\n\nAs SCAFFOLD's")]
    printed = dict(re.findall(r"(\w+)(?: \([\w ]+\))? (\d[\d.]*(?:e-\d+)?)[,: ]", text))
    same, names = re.search(r"and (\d[\d.]+): (.*?) \|", text).groups()
    del printed["and"], printed["than"]
    printed |= dict.fromkeys(names.split(", "), same)
    found = {name: curve[100] for name, curve in curves("sweeps/quadratics.yaml").items()}
    assert found.pop("scaffold") < 1e-29  # a rounding of nothing, which processors do differently
    assert found.pop("mime") < 1e-29
    assert found == {name: as_printed(value) for name, value in printed.items()}
    assert "mime and scaffold less than 1e-29" in text


def test_figure_1_of_the_mime_part(curves):
    text = PAPERS[PAPERS.index("**Figure 1 of the Mime part.**") : PAPERS.index("**EMNIST**")]
    head, _, *rows = rows_of(text)
    found = curves("papers/slides_figure1.yaml")
    assert [int(row[0]) for row in rows] == [10, 50, 100]
    for round, *losses in rows:
        for name, loss in zip(head[1:], losses, strict=True):
            assert found[name][int(round)] == as_printed(loss), (name, round)


def test_the_demo_on_scalar_quadratics(curves):
    found = curves("papers/slides_quadratics.yaml", "rounds=50")
    losses = re.search(
        r"loss of ([\d.]+) at G = 1, of ([\d.]+) at G = 10\s+and of ([\d.]+) at", PAPERS
    ).groups()
    for name, loss in zip(("G1", "G10", "G100"), losses, strict=True):
        assert found[f"fedavg-K10-{name}"][50] == as_printed(loss)


def test_the_demo_on_concrete(curves):
    """One of its three seeds: none lies farther from their mean than 1.16 standard deviations."""
    root = real("Concrete_Data.csv").parent
    text = PAPERS[PAPERS.index("**The demo on concrete.**") : PAPERS.index("**The demo on scalar")]
    optimum = float(re.search(r"at the optimum is ([\d.]+)\.", text)[1])
    found = curves("papers/slides_concrete.yaml", f"data.root={root}")
    names = ("sgd", "fedavg", "fedavg-small", "scaffold")
    table = rows_of(text)[2:]
    assert [int(row[0]) for row in table] == [10, 50, 200]
    for round, *cells in table:
        for name, cell in zip(names, cells, strict=True):
            mean, deviation = map(float, cell.split(" +- "))
            excess = found[name][int(round)] - optimum
            assert abs(excess - mean) < 1.6 * deviation + 5e-6, (name, round)
