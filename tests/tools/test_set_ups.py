"""Methods are compared on set-ups, which --chosen keeps; both have the names of the sweep."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcfl.job.load import load
from hpcfl.runs.job_file.settings import flatten
from hpcfl.runs.record import RunRecord
from hpcfl.runs.sweep_log import Label, PlaceInSweep, place_in_sweep
from hpcfl.tools.report import as_papers, by_seed, plain, to_latex
from hpcfl.tools.report.choose import choose_settings
from hpcfl.tools.report.layouts import arranged

SETTINGS = flatten(
    load(Path(__file__).parents[2] / "jobs/quickstart.yaml", ["data.validation.share=0.1"]).tree
)
TABLE = {"task": None, "data.kind": "table", "data.path": "plants.csv", "data.label": "species"}


def record(name, validation, own, labels=(), algorithm="fedavg"):
    settings = {**SETTINGS, "algorithm.name": algorithm, "rounds": 1, **own}
    line = {"round": 1, "test_accuracy": 0.5, "validation_accuracy": validation}
    return RunRecord(Path("s") / name, algorithm, 1, 0, (line,), settings, labels=labels)


def swept(set_ups, labelled=False):
    """Two methods and two rates on each set-up; the lower rate is the better one of the second."""
    runs = []
    for place, (label, own) in enumerate(set_ups.items()):
        for method, algorithm in (("fedavg", "fedavg"), ("ours", "mine.FedLogit")):
            for rate in (0.1, 0.2):
                labels = (
                    Label(label, ("data.path",)),
                    Label(method, ("algorithm",)),
                    Label(f"lr{rate}", ("local.lr",)),
                )
                runs.append(
                    record(
                        "-".join(name for name, _ in labels),
                        0.2 * place + (0.5 - rate if place else rate),
                        {**own, "local.lr": rate},
                        labels if labelled else (),
                        algorithm.rpartition(".")[2],
                    )
                )
    return runs


SET_UPS = {
    "files": [TABLE, TABLE | {"data.path": "fungi.csv"}],
    "labels": [TABLE, TABLE | {"data.label": "site"}],
    "own data": [{"data.kind": "mine.Shapes", "data.sides": n} for n in (3, 4)],
    "models": [{"model.name": "module", "model.of": of} for of in ("net.mlp", "net.deep")],
    "precisions": [{"precision": "float32"}, {"precision": "bf16"}],
    "validation data": [{"data.validation.share": share} for share in (0.1, 0.2)],
    "keys that one lacks": [TABLE, TABLE | {"data.more": 1}],
}


@pytest.mark.parametrize("several", SET_UPS.values(), ids=SET_UPS)
def test_every_set_up_keeps_its_own_choice(several):
    chosen = choose_settings(swept({"a": several[0], "b": several[1]}))
    assert [run.path.name for run in chosen.runs] == [
        "a-fedavg-lr0.2", "a-ours-lr0.2", "b-fedavg-lr0.1", "b-ours-lr0.1",
    ]  # fmt: skip
    assert all(line.endswith("(of 2 jobs)") for line in chosen.choices)
    (table,) = as_papers(chosen.runs).tables
    assert len(set(table.titles)) == 3


TUNED = {
    "algorithm.server_lr": (0.5, 1.0),
    "local.epochs": (1, 2),
    "loss": ("data", "focal"),
    "model.statistics": ("mean", "local"),
    "data.workers": (1, 4),
}


@pytest.mark.parametrize("key", TUNED)
def test_what_a_method_is_tuned_by_is_chosen_among(key):
    low, high = (record(f"{v}", s, {key: v}) for v, s in zip(TUNED[key], (0.1, 0.2), strict=True))
    assert choose_settings([low, high]).runs == [high]


def test_weights_that_a_method_alone_has_are_its_own():
    """DP-FedAvg has uniform weights: one column, though the other method has others."""
    runs = [
        record("a", 0.5, {"weights": "examples"}),
        record("b", 0.5, {"weights": "uniform"}, algorithm="dpfedavg"),
    ]
    assert len(as_papers(runs).tables[0].titles) == 2
    assert len(as_papers([*runs, record("c", 0.5, {"weights": "uniform"})]).tables[0].titles) == 3


def test_labels_are_methods_though_their_algorithm_is_one():
    """Each at its best rate, also where some have a model or weights of their own."""
    methods = {
        "adamw": ("fedavg", {"local.optimizer.kind": "adamw"}),
        "muon": ("fedavg", {"local.optimizer.kind": "muon"}),
        "normed": ("fedavg", {"model.of": "net.normed"}),
        "uniform": ("fedavg", {"weights": "uniform"}),
        "private": ("dpfedavg", {"weights": "uniform"}),
    }
    runs = [
        record(
            f"{label}-lr{rate}",
            rate if label == "adamw" else 1 - rate,
            {**own, "local.lr": rate},
            (Label(label, ("algorithm", *own)), Label(f"lr{rate}", ("local.lr",))),
            algorithm,
        )
        for label, (algorithm, own) in methods.items()
        for rate in (0.1, 0.2)
    ]
    chosen = choose_settings(runs)
    others = [f"{label}-lr0.1" for label in [*methods][1:]]
    assert sorted(run.path.name for run in chosen.runs) == sorted(["adamw-lr0.2", *others])
    assert {place for place, _ in chosen.settings} == {*methods}
    assert len(chosen.settings) == len(methods)
    # Without a sweep they are algorithms.
    plain_runs = [replace(run, labels=()) for run in runs]
    assert {place for place, _ in choose_settings(plain_runs).settings} == {"fedavg", "dpfedavg"}


def test_a_table_has_the_labels_of_the_sweep():
    runs = swept({"plants": TABLE, "fungi": TABLE | {"data.path": "fungi.csv"}}, labelled=True)
    chosen = choose_settings(runs)
    report = arranged(chosen, "paper")
    assert report.tables[0].titles == ["algorithm", "plants\nours %", "fungi\nours %"]
    assert [row[0] for row in report.tables[0].rows] == ["fedavg", "ours"]
    assert chosen.choices[-1] == "ours, fungi: local.lr 0.1 (of 2 jobs)"
    rows = by_seed(chosen.runs).tables[0].rows
    assert [row[:2] for row in rows] == [
        ["fedavg", "plants"], ["ours", "plants"], ["fedavg", "fungi"], ["ours", "fungi"],
    ]  # fmt: skip
    rows = by_seed(runs).tables[0].rows
    assert rows[0][:2] == ["fedavg", "plants, local.lr 0.1"]


def test_labels_of_points_that_are_one_method_tell_its_rows_apart():
    runs = [
        record(f"p{mu}", 0.5, {"algorithm.mu": mu}, (Label(f"fedprox-{mu}", ("algorithm",)),))
        for mu in (0.1, 1.0)
    ]
    (table,) = as_papers(runs).tables
    assert [row[0] for row in table.rows] == ["fedprox-0.1", "fedprox-1.0"]
    assert "settings" not in table.titles


def test_runs_of_several_sweeps_are_called_by_their_settings():
    runs = swept({"plants": TABLE, "fungi": TABLE | {"data.path": "fungi.csv"}}, labelled=True)
    others = [replace(run, path=Path("other") / run.path.name) for run in runs[4:]]
    (table,) = as_papers(choose_settings([*runs[:4], *others]).runs).tables
    assert table.titles[1].splitlines()[2] == "data.path plants.csv"
    assert [row[0] for row in table.rows] == ["fedavg", "FedLogit"]


def test_data_with_clients_of_their_own_leave_no_empty_line_of_a_title():
    runs = [record("a", 0.5, {}), record("b", 0.5, TABLE | {"data.partition.kind": None})]
    (table,) = as_papers(runs).tables
    assert table.titles[2] == "table\nown clients, validation\nours %"
    texts = [row[1] for row in by_seed(runs).tables[0].rows]
    assert texts == ["data.kind digits", "data.kind table"]


def test_latex_has_the_choices_in_comments():
    text = to_latex(arranged(choose_settings(swept({"a": TABLE, "b": {}})), "paper"))
    (caption,) = [line for line in text.splitlines() if "\\caption" in line]
    assert "of 2 jobs" not in caption
    assert (
        "% fedavg, digits, dirichlet 0, validation: local.lr 0.1 (of 2 jobs)" in text.splitlines()
    )
    assert "(of 2 jobs)" in plain(arranged(choose_settings(swept({"a": TABLE, "b": {}})), "seeds"))


def test_the_place_in_a_sweep_is_read_back(tmp_path):
    place = PlaceInSweep(
        3, (Label("plants", ("data.path", "data.label")), Label("seed0", ("seed",)))
    )
    (tmp_path / "run.yaml").write_text(place.head() + "task: digits\n")
    assert place_in_sweep(tmp_path / "run") == place
    for text in ("# place in the sweep: 3\n", "# place in the sweep: 3\n# labels: [1]\n"):
        (tmp_path / "run.yaml").write_text(text)
        assert place_in_sweep(tmp_path / "run") == PlaceInSweep(3)
    (tmp_path / "run.yaml").write_text("task: digits\n")
    assert place_in_sweep(tmp_path / "run") == place_in_sweep(tmp_path / "none")
