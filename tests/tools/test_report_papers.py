import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.runs.job_file.settings import flatten
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report import as_papers, by_run, plain, to_csv, to_latex, to_markdown
from hpcfl.tools.report.formats import escaped
from hpcfl.tools.report.rounds_to_target import Target

ROOT = Path(__file__).parents[2]
HBM = "algorithm={name: fedhbm}"
IID = "data.partition.alpha=10000"


def record(accuracies, *overrides, rounds=None, last=2, job="cifar10/fedavg_noniid"):
    """A run with an evaluation every round."""
    settings = flatten(load(ROOT / f"jobs/{job}.yaml", overrides).tree)
    settings["rounds"] = rounds or len(accuracies)
    log = tuple({"round": k + 1, "test_accuracy": a} for k, a in enumerate(accuracies))
    name = settings["algorithm.name"]
    return RunRecord(Path(name), name, settings["rounds"], last, log, settings)


@pytest.fixture
def runs():
    return [
        record([0.1, 0.4, 0.6], "seed=0"),
        record([0.1, 0.5, 0.7], "seed=1"),
        record([0.1, 0.9], HBM, IID, rounds=3),
        record([0.1, 0.7, 0.8], HBM),
        record([0.1, 0.8, 0.8], IID),
    ]


def cells(table):
    return [list(row) for row in table.rows]


def test_algorithms_by_splits_theirs_beside_ours(runs):
    """FedAvg's seeds: 50 and 60, sample standard deviation sqrt(50)."""
    (table,) = as_papers(runs).tables
    assert table.titles == [
        "algorithm", "cifar10\ndirichlet 0\nours %", "cifar10\ndirichlet 0\npublished",
        "cifar10\ndirichlet 10000\nours %", "cifar10\ndirichlet 10000\npublished",
    ]  # fmt: skip
    assert cells(table) == [
        ["fedavg", "55.00 +- 7.07 (n=2)", "66.12 +- 0.32", "80.00", "83.11 +- 0.34"],
        ["fedhbm", "75.00", "81.71 +- 0.15", "90.00 @2/3", "83.83 +- 0.14"],
    ]
    assert table.best == {(1, 1), (1, 2), (1, 4)}  # an unfinished run does not compete
    assert table.captions[:3] == [
        "ours: mean test accuracy of the last 2 rounds",
        "n: seeds; +-: their sample standard deviation",
        "@t/T: of an unfinished run, the newest accuracy, after t of its T rounds",
    ]
    assert "ours after 2 to 3 of 10 000 rounds" in table.captions[3]


def test_cells_without_runs(runs):
    """A dash; what is published of them stands all the same."""
    (table,) = as_papers([*runs[:2], *runs[2:3]]).tables
    assert cells(table) == [
        ["fedavg", "55.00 +- 7.07 (n=2)", "66.12 +- 0.32", "-", "83.11 +- 0.34"],
        ["fedhbm", "-", "81.71 +- 0.15", "90.00 @2/3", "83.83 +- 0.14"],
    ]


def test_seeds_that_are_not_finished(runs):
    """They do not count beside finished ones, and several of them have a range."""
    late = record([0.2], "seed=2", rounds=3)
    (row,) = as_papers([*runs[:2], late]).tables[0].rows
    assert row[1] == "55.00 +- 7.07 (n=2 of 3)"
    (row,) = as_papers([late, record([0.1, 0.4], "seed=3", rounds=3)]).tables[0].rows
    assert row[1] == "30.00 +- 14.14 @1-2/3 (n=2)"
    (row,) = as_papers([late, record([], "seed=3", rounds=3)]).tables[0].rows
    assert row[1] == "20.00 @1/3 (n=1 of 2)"
    (row,) = as_papers([replace(late, failed=True)]).tables[0].rows
    assert row[1] == "20.00 @1/3 failed"


def test_jobs_of_one_cell_have_rows_of_their_own(runs):
    others = [record([0.1, 0.2, 0.3], "local.lr=0.5"), record([0.1, 0.2])]
    (table,) = as_papers([runs[0], runs[4], *others]).tables
    assert table.titles[1] == "settings"
    assert [row[:3] for row in cells(table)] == [
        ["fedavg", "local.lr 0.01, rounds 3", "50.00"],
        ["fedavg", "local.lr 0.5, rounds 3", "25.00"],
        ["fedavg", "local.lr 0.01, rounds 2", "15.00"],
        ["fedavg", "", "-"],  # the only one of its split
    ]


def test_what_finished_runs_are_judged_by(runs):
    every = record([k / 200 for k in range(150)], last=0)
    assert as_papers([every]).tables[0].captions[0] == (
        "ours: mean test accuracy of the last 100 rounds"
    )
    short = record([0.1, 0.2, 0.3], last=100)
    assert as_papers([short]).tables[0].captions[0] == (
        "ours: mean test accuracy of the last 3 rounds"
    )
    other = record([0.5], IID, last=0)
    assert as_papers([runs[0], other]).tables[0].captions[0] == (
        "ours: mean test accuracy of the last 2 rounds; with *, test accuracy after the last round"
    )


def test_numbers_of_different_metrics_do_not_compete(runs):
    """40 and 60 in the mean of the last two; 90 after the last round alone."""
    report = as_papers([runs[0], record([0.1, 0.2, 0.9], HBM, last=0)])
    assert [row[1] for row in report.tables[0].rows] == ["50.00", "90.00*"]
    assert not {cell for cell in report.tables[0].best if cell[1] == 1}
    more = [*runs[:1], runs[3], record([0.1, 0.2, 0.9], "algorithm={name: scaffold}", last=0)]
    (table,) = as_papers(more).tables
    assert [row[1] for row in table.rows] == ["50.00", "75.00", "90.00*"]
    assert {cell for cell in table.best if cell[1] == 1} == {(1, 1)}  # of the two alike
    assert [value["metric"] for value in report.values][:2] == ["accuracy_last2", "accuracy_last"]


def test_a_mean_of_the_last_rounds_is_of_all_of_them():
    """As where a resume asked for more of them than the rounds that were still to come."""
    few = record([0.1, 0.2, 0.9], last=3)
    few = replace(few, log=({"round": 1}, *few.log[1:]))
    assert few.mean_accuracy is None
    report = as_papers([few])
    assert report.values[0]["metric"] == "accuracy_last"
    assert report.tables[0].rows[0][1] == "90.00"


def test_of_two_runs_of_a_seed_the_longer_counts(runs):
    first = replace(runs[0], path=Path("first"), log=runs[0].log[:1])
    for given in ([first, runs[0], runs[3]], [runs[0], first, runs[3]]):
        (table,) = as_papers(given).tables
        assert table.rows[0][1] == "50.00"
        assert sum("left out: first: " in caption for caption in table.captions) == 1


def test_a_run_that_is_older_than_a_key_is_a_job_of_its_own(runs):
    """In the same column where the key is of the algorithm, in another where it is of the data."""
    older = replace(
        runs[3], settings={k: v for k, v in runs[3].settings.items() if "first" not in k}
    )
    (table,) = as_papers([older, replace(runs[3], path=Path("newer"))]).tables
    assert [row[:2] for row in table.rows] == [
        ["fedhbm", ""], ["fedhbm", "algorithm.first zero"],
    ]  # fmt: skip
    assert not any("left out" in caption for caption in table.captions)
    older = replace(runs[3], settings={k: v for k, v in runs[3].settings.items() if "std" not in k})
    (table,) = as_papers([older, runs[3]]).tables
    assert [title.replace("\n", " ") for title in table.titles[1::2]] == [
        "cifar10 dirichlet 0 ours %", "cifar10 dirichlet 0 data.std [0.2023, 0.1994, 0.201] ours %",
    ]  # fmt: skip


def test_seeds_are_judged_by_one_metric():
    """As where one of them evaluated more often than the other."""
    seeds = [record([k / 200 for k in range(150)], last=0), record([0.3] * 150, "seed=1", last=0)]
    sparse = replace(seeds[1], log=seeds[1].log[9::10])
    (table,) = as_papers([seeds[0], sparse]).tables
    assert table.captions[0] == "ours: test accuracy after the last round"
    assert table.rows[0][1] == "52.25 +- 31.47 (n=2)"  # 74.5 and 30


def test_the_rounds_to_targets(runs):
    """Table 2 of FedHBM: 0.7 x 86.48 % is 60.536 %, 0.8 x it 69.184 %."""
    _, seventy, eighty = as_papers([*runs[:2], *runs[2:4]], [Target(70), Target(80)]).tables
    assert cells(seventy) == [
        ["fedavg", "3 (1.00x) (n=1 of 2)", "5520 (1.00x)", "-"],
        ["fedhbm", "2", "770 (7.17x)", "2"],
    ]
    assert seventy.titles[1:3] == [
        "cifar10\ndirichlet 0\nours to 70 %", "cifar10\ndirichlet 0\npublished",
    ]  # fmt: skip
    assert cells(eighty)[0][1:3] == ["3 (1.00x) (n=1 of 2)", "9935 (1.00x)"]


def test_speedups_are_over_fedavg_of_the_same_seed():
    runs = [
        record([0.1, 0.1, 0.1, 0.9]),
        record([0.1, 0.9, 0.9, 0.9], "seed=1"),
        record([0.1, 0.9, 0.9, 0.9], HBM),
        record([0.9, 0.9, 0.9, 0.9], HBM, "seed=1"),
        record([0.1, 0.1, 0.1, 0.1], "algorithm={name: fedcm}"),
        record([0.1], "algorithm={name: fedcm}", "seed=1", rounds=4),
        record([0.1, 0.1, 0.9, 0.9], "algorithm={name: fedprox}", "seed=1"),
        record([0.1, 0.1, 0.9, 0.9], "algorithm={name: fedprox}", "seed=2"),
    ]
    _, table = as_papers(runs, [Target(0.9, absolute=True)]).tables
    assert [row[1] for row in table.rows] == [
        "3 +- 1 (1.00x) (n=2)", "2 +- 1 (2.00x) (n=2)", "> 4", "3 +- 0 (0.67x, n=1) (n=2)",
    ]  # fmt: skip
    assert table.best == {(1, 1)}


def test_nothing_is_classified():
    with pytest.raises(JobError, match="no run has a test accuracy"):
        as_papers([RunRecord(Path("r"), "fedavg", 1, 0, ({"round": 1, "test_loss": 1.0},))])


def test_the_values_are_a_row_a_number(runs):
    found = list(csv.DictReader(io.StringIO(to_csv(as_papers(runs, [Target(70)])))))
    assert len(found) == 12
    first, hbm = found[0], found[3]
    assert {key: first[key] for key in ("algorithm", "data", "split", "metric", "seeds")} == {
        "algorithm": "fedavg", "data": "cifar10", "split": "dirichlet 0",
        "metric": "accuracy_last2", "seeds": "2",
    }  # fmt: skip
    assert (float(first["mean"]), float(first["std"])) == pytest.approx((0.55, 0.0707107))
    assert (first["published"], first["published_std"]) == ("0.6612", "0.0032")
    assert (hbm["metric"], hbm["rounds"], hbm["rounds_done"]) == ("accuracy", "3", "2")
    assert (found[4]["metric"], found[4]["published"]) == ("rounds_to_70", "5520.0")
    assert [row["metric"] for row in found[8:]] == ["speedup_70"] * 4
    assert [found[10][key] for key in ("mean", "n", "baseline", "published")] == [
        "",
        "0",
        "",
        "7.17",
    ]


def widths(line):
    """How many columns a line of a tabular fills."""
    parts = [part.strip() for part in re.split(r"(?<!\\)&", line.removesuffix(r" \\"))]
    spans = [re.match(r"\\multicolumn\{(\d+)\}", part) for part in parts]
    return sum(int(span[1]) if span else 1 for span in spans)


def test_latex(runs):
    text = to_latex(as_papers(runs, [Target(70)]))
    assert text.isascii()
    assert text.count("{") == text.count("}")
    assert text.count(r"\begin{table}") == text.count(r"\end{tabular}") == 2
    first = text.split(r"\end{table}")[0]
    assert r"\begin{tabular}{lrrrr}" in first
    lines = [line.strip() for line in first.splitlines() if line.endswith(r" \\")]
    assert [widths(line) for line in lines] == [5] * 5
    assert lines == [
        r"& \multicolumn{4}{c}{cifar10} \\",
        r"& \multicolumn{2}{c}{dirichlet 0} & \multicolumn{2}{c}{dirichlet 10000} \\",
        r"algorithm & ours \% & published & ours \% & published \\",
        r"fedavg & 55.00 $\pm$ 7.07 (n=2) & 66.12 $\pm$ 0.32 & 80.00 & 83.11 $\pm$ 0.34 \\",
        r"fedhbm & \textbf{75.00} & \textbf{81.71 $\pm$ 0.15} & 90.00 @2/3"
        r" & \textbf{83.83 $\pm$ 0.14} \\",
    ]
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in first
    rules = [r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}", r"\caption{ours: mean"]
    assert [first.index(rule) for rule in rules] == sorted(first.index(rule) for rule in rules)


def test_latex_of_a_table_of_runs(runs):
    text = to_latex(by_run(runs))
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert {widths(row) for row in rows[:7]} == {10}
    assert r"best \\" not in text
    assert r"% @round" not in text.replace(r"\% @round", "")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("server_only 50 % & #1", r"server\_only 50 \% \& \#1"),
        ("1 +- 2, > 3", r"1 $\pm$ 2, \textgreater{} 3"),
        ("-", "--"),
        (r"a\b ~^ {$}", r"a\textbackslash{}b \textasciitilde{}\textasciicircum{} \{\$\}"),
    ],
)
def test_latex_escapes(text, latex):
    assert escaped(text) == latex


def test_the_best_is_bold_in_markdown_too(runs):
    report = as_papers(runs)
    assert "| **75.00** | **81.71 +- 0.15** | 90.00 @2/3 |" in to_markdown(report)
    assert "**" not in plain(report)
