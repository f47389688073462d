"""Columns that are chosen and renamed, and the best of each in bold."""

import pytest

from hpcfl.errors import JobError
from hpcfl.report import Report, Table, plain, to_csv, to_latex, to_markdown
from hpcfl.report.best import with_best
from hpcfl.report.choose_columns import ChosenColumn, choose_columns
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
