"""What methods and runs are called in tables and legends, by --names."""

from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.report import Report, Table
from hpcfl.report.names import DisplayNames
from hpcfl.run_dir.record import RunRecord

RUNS = [
    RunRecord(Path("runs/a/low"), "fedavg", 4, 0, ()),
    RunRecord(Path("runs/b/low"), "fedavg", 4, 0, ()),
    RunRecord(Path("runs/fedhbm"), "fedhbm", 4, 0, ()),
]


def test_a_table_has_the_titles_in_its_columns_of_names():
    """And nowhere else: "fedavg" in another column stays."""
    names = DisplayNames.parse("fedavg=FedAvg (ours), a/low = Low,fedhbm=FedHBM", RUNS)
    rows = [["a/low", "fedavg", "fedavg"], ["b/low", "fedavg", "1"], ["fedhbm", "fedhbm", "2"]]
    values = [{"run": "fedhbm", "algorithm": "fedavg", "settings": "fedavg", "rounds": 4}]
    made = names.rename(Report([Table(["run", "algorithm", "settings"], rows)], values))
    assert made.tables[0].rows == [
        ["Low", "FedAvg (ours)", "fedavg"],
        ["b/low", "FedAvg (ours)", "1"],
        ["FedHBM", "FedHBM", "2"],
    ]
    assert made.values == [
        {"run": "FedHBM", "algorithm": "FedAvg (ours)", "settings": "fedavg", "rounds": 4}
    ]


def test_a_curve_has_the_title_of_its_method_or_of_its_run():
    names = DisplayNames.parse("fedavg=FedAvg,a/low=Low,fedhbm=FedHBM", RUNS)
    assert names.curve("fedavg, local.lr 0.1", RUNS[:1]) == "Low"
    assert names.curve("fedavg, local.lr 0.3", RUNS[1:2]) == "FedAvg, local.lr 0.3"
    assert names.curve("fedavg", RUNS[:2]) == "FedAvg"  # several seeds
    assert names.curve("fedhbm, beta 1", RUNS[2:]) == "FedHBM, beta 1"
    assert DisplayNames().curve("fedavg, local.lr 0.3", RUNS[:1]) == "fedavg, local.lr 0.3"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("fedavg", "found 'fedavg', expected NAME=TITLE"),
        ("fedavg=", "found 'fedavg=', expected NAME=TITLE"),
        ("fedavg=a,", "found '', expected NAME=TITLE"),
        ("fedavg=a\nb", r"found 'fedavg=a\\nb', expected NAME=TITLE"),
        ("fedavgg=A", r"found 'fedavgg', .*: fedavg, fedhbm, a/low, b/low; did you mean fedavg\?"),
        ("low=A", "found 'low', expected a method or run"),  # two runs have this name
        ("fedavg=A,fedavg=B", "fedavg is named twice; name it once"),
        ("fedavg=A,fedhbm=A", "fedavg and fedhbm are both called 'A'; choose two titles"),
    ],
)
def test_wrong_names_are_refused(text, line):
    with pytest.raises(JobError, match=f"--names: {line}"):
        DisplayNames.parse(text, RUNS)
