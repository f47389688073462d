"""Columns that are chosen and renamed, and the best of each in bold."""

import csv
import io
import re

import pytest
from rich.console import Console

from hpcfl.errors import JobError
from hpcfl.report import Report, Table, plain, tables, to_csv, to_latex, to_markdown
from hpcfl.report.best import with_best
from hpcfl.report.choose_columns import ChosenColumn, choose_columns
from hpcfl.report.formats import escaped
from hpcfl.report.table import Caption

TABLE = Table(
    ["algorithm", "accuracy\n%", "best\n% @round", "test\nloss", "rounds\nto 80"],
    [
        ["fedavg", "80.00", "81.00 @3", "0.5", "9"],
        ["scaffold", "82.00 +- 1.00", "81.00 @4", "0.4", "12 (n=1 of 2)"],
        ["fedprox", "99.00", "99.00 @1", "0.1", "3"],
    ],
)
REPORT = Report([TABLE], [{"algorithm": "fedavg", "test_accuracy": 0.8}])


def chosen(text, *, values=False):
    return choose_columns(REPORT, ChosenColumn.parse(text), values=values)


def test_columns_are_chosen_ordered_and_renamed():
    made = chosen("accuracy=Accuracy (%), algorithm=Method,rounds to 80")
    assert to_markdown(made).splitlines()[:3] == [
        "| Accuracy (%) | Method | rounds to 80 |",
        "| --: | :-- | --: |",
        "| 80.00 | fedavg | 9 |",
    ]
    assert r"\begin{tabular}{rlr}" in to_latex(made)


RATES = [{"local.lr": rate, "cohort.size": 2} for rate in (0.1, 0.3, 1.0)]


def test_a_key_of_the_jobs_is_a_column():
    table = TABLE._replace(settings=RATES)
    columns = ChosenColumn.parse("algorithm,local.lr=Rate")
    made = choose_columns(Report([table], []), columns, values=False)
    assert to_markdown(made).splitlines()[2:4] == ["| fedavg | 0.1 |", "| scaffold | 0.3 |"]
    values = [{"algorithm": name} for name in ("fedavg", "scaffold", "fedprox")]
    made = choose_columns(Report([table], values, RATES), columns, values=True)
    assert to_csv(made).splitlines()[:2] == ["algorithm,Rate", "fedavg,0.1"]
    with pytest.raises(
        JobError,
        match=r"or a key of the jobs that all runs of a row agree in; did you mean local\.lr\?",
    ):
        choose_columns(Report([table], []), ChosenColumn.parse("local.rl"), values=False)


def test_captions_of_columns_that_are_left_out():
    """Only what the caption is about decides: another has the same beginning."""
    rows = [["fedavg", "local.lr 0.1", "80"], ["fedavg", "local.lr 0.3", "81"]]
    captions = [
        "best: for all",
        Caption("best: chosen on the test set", "best\n% @round"),
        Caption("settings: as chosen", "settings", "best\n% @round", "absent"),
        Caption("absent: in this table", "absent"),
    ]
    table = Table(["algorithm", "settings", "best\n% @round"], rows, captions)

    def shown(text):
        report = choose_columns(Report([table], []), ChosenColumn.parse(text), values=False)
        return report.tables[0].captions

    assert shown("algorithm,settings,best") == captions
    assert shown("algorithm,best") == [
        *captions,
        "rows of one name differ in their settings, a column that is not shown",
    ]
    assert shown("settings") == [captions[0], *captions[2:]]
    assert shown("algorithm")[:2] == [captions[0], captions[3]]


def test_csv_is_chosen_by_its_keys():
    assert to_csv(chosen("test_accuracy=Acc", values=True)) == "Acc\n0.8\n"


MARKS = ["a|b", "[red]", "Acc [/x]", "[bold", ":smile:", "*x*", "<b>", "back\\slash", "_#%&$~^{}"]


@pytest.mark.parametrize("text", MARKS)
def test_titles_and_cells_are_printed_as_they_are(text):
    """Not as marks of rich, Markdown or LaTeX; in bold, too."""
    rows = [[text, "80"], ["fedavg", "79"]]
    table = Table(["algorithm", "accuracy\n%"], rows, [text], best=frozenset({(0, 0)}))
    report = Report([table], [{"algorithm": text, "accuracy": "80"}])
    columns = ChosenColumn.parse(f"algorithm={text},accuracy")
    made = choose_columns(report, columns, values=False)
    *drawn, caption = plain(made).splitlines()
    assert sum(text in line for line in drawn) == 2
    assert len(set(map(len, drawn))) == 1
    assert caption == text
    console = Console(width=100, file=io.StringIO())
    console.print(*tables(made))  # in a console of the user's
    assert console.file.getvalue().count(text) == 2
    lines = to_markdown(made).splitlines()
    head, _, first = lines[:3]
    literal = re.sub(r"([\\*<|])", r"\\\1", text)
    assert head == f"| {literal} | accuracy % |"
    assert first == f"| **{literal}** | 80 |"
    assert lines[-1] == f"- {literal}"
    body = to_latex(made).splitlines()
    assert f"    {escaped(text)} & \\% \\\\" in body
    assert f"    \\textbf{{{escaped(text)}}} & 80 \\\\" in body
    made = choose_columns(report, columns, values=True)
    assert list(csv.reader(io.StringIO(to_csv(made)))) == [[text, "accuracy"], [text, "80"]]


def test_a_row_of_latex_does_not_begin_with_an_option_of_the_line_above():
    assert (escaped("[1pt]"), escaped("*")) == ("{[}1pt]", "{*}")


def test_two_columns_of_csv_have_two_titles():
    with pytest.raises(JobError, match="--columns: found 'A' twice, expected a title of"):
        chosen("algorithm=A,test_accuracy=A", values=True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("algorithm,acuracy", "found 'acuracy', expected of algorithm, accuracy, best, test loss"),
        ("algorithm=", "found 'algorithm=' in 'algorithm=', expected NAME or NAME=TITLE"),
        (",", "found '' in ',', expected NAME"),
    ],
)
def test_a_wrong_choice_is_refused(text, line):
    with pytest.raises(JobError, match="--columns: ") as error:
        chosen(text)
    assert line in str(error.value)


def test_the_best_competes_where_it_is_finished():
    """Not that of the last row, nor a mean of one seed of two; equals as printed are both bold."""
    best = with_best(TABLE, [], [True, True, False])
    assert best.best == {(1, 1), (0, 2), (1, 2), (1, 3)}
    kept = choose_columns(Report([best], []), ChosenColumn.parse("test loss"), values=False)
    assert to_markdown(kept).count("**") == 2
    assert "**0.4**" in to_markdown(kept)
    assert r"\textbf{0.4}" in to_latex(kept)
    assert "\x1b[1m" in plain(kept, styled=True)
    assert "\x1b" not in plain(kept)


@pytest.mark.parametrize("layout", ["runs", "seeds"])
def test_a_key_of_the_jobs_in_csv(job, tmp_path, hpcfl, layout):
    """From the command line, where the methods' names are applied first."""
    for rate in (0.1, 0.2):
        words = (f"local.lr={rate}", "rounds=1", "--out", tmp_path / str(rate))
        assert hpcfl("run", job, *words).code == 0
    runs = (tmp_path / "0.1", tmp_path / "0.2")
    columns = ("--columns", "algorithm,local.lr=Rate", "--names", "fedhbm=FedHBM")
    done = hpcfl("report", *runs, "--layout", layout, "--format", "csv", *columns)
    assert done.code == 0, done.err
    assert done.out == ["algorithm,Rate", "FedHBM,0.1", "FedHBM,0.2"]
