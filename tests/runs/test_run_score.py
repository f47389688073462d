"""A run is chosen, tabled and drawn by the score of the models that its method is about.

Local training alone (``alone``) never changes x, so that only the clients' own models can tell a
good rate from a bad one.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hpcfl as api
from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.runs.job_file.settings import flatten
from hpcfl.runs.record import RunRecord, read_run
from hpcfl.runs.run_score import OwnModels
from hpcfl.tools.report import as_papers, by_run, by_seed, plain, to_csv, to_latex, to_markdown
from hpcfl.tools.report.choose import choose_settings
from hpcfl.tools.report.collect import collect_runs
from hpcfl.tools.report.plots import Plot, curves
from hpcfl.tools.report.rounds_to_target import Target, with_target
from hpcfl.tools.status import status
from hpcfl.tools.sweep.grid import read_sweep
from tests.rundirs import log_of

GOOD, BAD = 0.1, 0.0001
METHODS = {
    "alone": {"name": "fedper", "personal": "all"},
    "fedper": {"name": "fedper"},
    "ditto": {"name": "ditto"},
    "fedavg": {"name": "fedavg"},
}
PERSONAL = ("alone", "fedper", "ditto")
JOB = {"rounds": 40, "evaluate.every": 20, "data.holdout": 0.2, "data.validation": {"share": 0.2}}
HELD_OUT = OwnModels("holdout", "not trained")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Each method at a bad rate, which is the first, and at a good one, in a folder of its own."""
    root = tmp_path_factory.mktemp("rates")
    for method, algorithm in METHODS.items():
        for rate in (BAD, GOOD):
            settings = {**JOB, "algorithm": algorithm, "local.lr": rate}
            api.run("quickstart", settings, out=root / method / f"{rate}")
    return root


@pytest.fixture
def copied(swept, tmp_path):
    """The folder of a method, to be changed."""
    return lambda method: Path(shutil.copytree(swept / method, tmp_path / method))


def runs_of(folder):
    return collect_runs([folder]).runs


def as_of_an_earlier_version(folder, without="personal_validation"):
    """Take out of the runs what earlier versions do not write: these scores, and the facts."""
    for run in folder.iterdir():
        log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        for entry in log:
            for key in [key for key in entry if key.startswith((without, "crc32"))]:
                del entry[key]
        (run / "log.jsonl").write_bytes(log_of(log))
        shutil.rmtree(run / "checkpoints")  # they have the checksum of the log
        (start,) = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        del start["own_models"], start["crc32"]
        (run / "history.jsonl").write_bytes(log_of([start]))


@pytest.mark.parametrize("method", PERSONAL)
def test_the_rate_that_is_good_for_the_clients_is_chosen(swept, method):
    chosen = choose_settings(runs_of(swept / method))
    assert [run.settings["local.lr"] for run in chosen.runs] == [GOOD]
    assert chosen.captions == [
        "settings: those with the highest personal validation accuracy after the last round, a "
        "mean over seeds"
    ]
    assert chosen.note == "settings chosen on the validation data"


@pytest.mark.parametrize("method", PERSONAL)
def test_the_final_sweep_has_the_good_rate(swept, method, tmp_path, hpcfl):
    final = tmp_path / "final.yaml"
    done = hpcfl("report", swept / method, "--chosen", "--write-sweep", final)
    assert done.code == 0, done.err
    (point,) = read_sweep(final).points
    assert point.loaded.job.local.lr == GOOD


def test_a_table_of_a_paper_has_the_personal_accuracy(swept):
    runs = choose_settings(runs_of(swept)).runs
    report = as_papers(runs)
    (table,) = report.tables
    accuracies = {run.path.parent.name: run.log[-1] for run in runs}
    assert accuracies["ditto"]["test_accuracy"] != accuracies["ditto"]["personal_accuracy"]
    cells = {row[0]: row[-1] for row in table.rows}
    assert cells["ditto"] == f"{100 * accuracies['ditto']['personal_accuracy']:.2f}*"
    assert cells["fedavg"] == f"{100 * accuracies['fedavg']['test_accuracy']:.2f}"
    assert table.captions[0] == (
        "ours: test accuracy after the last round; with *, accuracy of the clients' own models on "
        "held-out examples of each client after the last round"
    )
    metrics = {row["algorithm"]: (row["metric"], row["mean"]) for row in report.values}
    assert metrics["ditto"] == ("personal_accuracy_last", accuracies["ditto"]["personal_accuracy"])
    assert metrics["fedavg"] == ("accuracy_last", accuracies["fedavg"]["test_accuracy"])
    for text in (plain(report), to_markdown(report).replace("\\", ""), to_latex(report)):
        assert "held-out examples of each client" in text
    # Scores of different models do not compete.
    assert not any(table.rows[row][0] == "fedavg" for row, _ in table.best)


def test_tables_of_runs_mark_the_model(swept):
    """In every format: the best of the clients' own models, and what is said of x."""
    runs = choose_settings(runs_of(swept)).runs
    for layout in (by_run, by_seed):
        report = layout(runs)
        table = report.tables[-1]
        title = next(t for t in table.titles if t.startswith("best"))
        best, x = table.titles.index(title), table.titles.index("accuracy\n%")
        marks = {
            row[table.titles.index("algorithm")]: (row[best][-2:].strip(), row[x][-2:].strip())
            for row in table.rows
        }
        assert marks["ditto"][0] == marks["fedper"][0] == "p"
        assert marks["fedper"][1] == "!"
        assert "p" not in marks["fedavg"][0]
        assert "!" not in marks["ditto"][1] + marks["fedavg"][1]
        explained = [
            "p: of the clients' own models, on held-out examples of each client: fedper, ditto",
            "!: of the global model x, which is not trained: fedper",
        ]
        assert all(line in table.captions for line in explained)
        assert all(line in to_latex(report) for line in explained)
        of = {row["algorithm"]: row["score_of"] for row in report.values}
        assert of == {
            "fedper": "personal, holdout", "ditto": "personal, holdout", "fedavg": "global",
        }  # fmt: skip
        assert "score_of" in to_csv(report).splitlines()[0]
    keys = ["personal_accuracy" if run.algorithm != "fedavg" else "test_accuracy" for run in runs]
    found = [run.log[-1][key] for run, key in zip(runs, keys, strict=True)]
    assert [row["accuracy"] for row in by_run(runs).values] == found


@pytest.fixture
def drawn(monkeypatch):
    """What would have been saved: a list of figures."""
    figures = []
    monkeypatch.setattr(curves, "save", lambda figure, paths: figures.append(figure))
    return figures


def test_a_plot_draws_the_personal_curve(swept, drawn):
    (run,) = choose_settings(runs_of(swept / "alone")).runs
    Plot([run], [Path("x.png")]).draw()
    (axes,) = drawn[0].axes
    found = [line["personal_accuracy"] for line in run.log if "personal_accuracy" in line]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([100 * value for value in found])
    assert axes.get_ylabel() == "personal accuracy, %"


def test_a_plot_of_several_methods_says_whose_score_is_drawn(swept, drawn):
    runs = choose_settings(runs_of(swept)).runs
    Plot(runs, [Path("x.png")]).draw()
    (axes,) = drawn[0].axes
    labels = sorted(text.get_text() for text in axes.get_legend().get_texts())
    assert labels == ["ditto (personal, holdout)", "fedavg", "fedper (personal, holdout)"]
    assert axes.get_ylabel() == "accuracy, %"
    Plot(runs, [Path("x.png")], "test_accuracy").draw()
    shown = " ".join(text.get_text() for text in drawn[1].axes[0].get_legend().get_texts())
    assert "(x, which is not trained)" in shown


def test_status_tells_the_best_of_the_clients_own_models(swept):
    text = status(swept / "alone" / f"{GOOD}")
    last = read_run(swept / "alone" / f"{GOOD}").log[-1]
    assert (
        "trains              each client's own model, scored as personal; other scores are of x "
        "alone, which is not trained"
    ) in text
    (best,) = [line for line in text.splitlines() if line.startswith("best")]
    assert f"where the personal accuracy is {last['personal_accuracy']:.4g}" in best


def test_runs_of_an_earlier_version_are_chosen_by_what_they_have(copied):
    """Their personal scores, on held-out examples, and a caption says so."""
    folder = copied("alone")
    as_of_an_earlier_version(folder)
    chosen = choose_settings(runs_of(folder))
    assert [run.settings["local.lr"] for run in chosen.runs] == [GOOD]
    assert chosen.captions[-1] == "settings: chosen on held-out examples of each client"


def test_a_model_that_is_not_trained_chooses_nothing(swept, copied):
    """Beside another method a line says so, alone it is an error."""
    folder = copied("alone")
    as_of_an_earlier_version(folder, without="personal")
    runs = [
        replace(run, settings={**run.settings, "evaluate.personal": False})
        for run in runs_of(folder)
    ]
    with pytest.raises(JobError, match="the clients' own models are not scored, and x is not"):
        choose_settings(runs)
    chosen = choose_settings([*runs, *runs_of(swept / "fedavg")])
    assert {run.algorithm for run in chosen.runs} == {"fedavg"}
    assert chosen.choices[0].startswith("fedper: none, the clients' own models are not scored")
    (table,) = as_papers(runs).tables
    assert (
        table.captions[0] == "ours: test accuracy (of x, which is not trained) after the last round"
    )
    assert not table.best


def record(name, own, log, *overrides, **settings):
    """A run that a log describes; ``own`` is known of its clients' own models."""
    method = "fedavg" if own is None else "ditto"
    loaded = load("quickstart", [f"algorithm={{name: {method}}}", *overrides])
    job = (
        flatten(loaded.tree) | {"evaluate.personal": own is not None, "rounds": len(log)} | settings
    )
    lines = tuple({"round": t + 1, **line} for t, line in enumerate(log))
    return RunRecord(Path(name), method, len(log), 0, lines, job, own_models=own)


LINES = [
    {"test_accuracy": 0.5, "personal_accuracy": 0.8},
    {"test_accuracy": 0.7, "personal_accuracy": 0.6},
]


def test_the_best_round_is_that_of_the_clients_own_models():
    own = record("a", HELD_OUT, LINES)
    assert own.best == (1, 0.8)
    assert record("b", None, LINES).best == (2, 0.7)
    validated = [{**line, "personal_validation_accuracy": 0.1 * t} for t, line in enumerate(LINES)]
    assert record("c", HELD_OUT, validated).best == (2, 0.6)
    unvalidated = [{**line, "validation_accuracy": 0.1 * t} for t, line in enumerate(LINES)]
    assert record("d", HELD_OUT, unvalidated).chosen_on == "test"


def test_the_rounds_to_a_target_are_those_of_the_clients_own_models():
    runs = [record("a", HELD_OUT, LINES), record("b", None, LINES)]
    column, *_ = with_target(runs, Target(0.65, absolute=True)).columns
    assert [column.cell(run) for run in runs] == ["1 p", "2"]


def test_seeds_of_which_some_count_by_x_have_no_common_mean():
    scored = record("a", HELD_OUT, LINES)
    other = record("b", HELD_OUT, LINES, "seed=1", **{"evaluate.personal": False})
    for report in (by_seed([scored, other]), as_papers([scored, other])):
        (table,) = report.tables
        assert len(table.rows) == 2
        assert not any("+-" in cell for row in table.rows for cell in row)


def test_settings_that_count_by_x_are_not_compared_with_those_of_the_clients_own_models():
    scored = record("a", HELD_OUT._replace(x="trained"), LINES)
    by_x = record("b", scored.own_models, LINES, "local.lr=0.3", **{"evaluate.personal": False})
    assert by_x.log[-1]["test_accuracy"] > scored.log[-1]["personal_accuracy"]
    chosen = choose_settings([scored, by_x])
    assert chosen.runs[0].path == scored.path
    assert chosen.choices == ["ditto: local.lr 0.1, score of personal (of 1 of 2 jobs)"]


def test_own_examples_that_are_trained_on_are_told():
    run = record("a", OwnModels("train", "trained"), LINES)
    (table,) = as_papers([run]).tables
    told = "accuracy of the clients' own models on each client's training examples"
    assert table.captions[0].startswith(f"ours: {told}")
    assert "personal, train" in to_csv(by_run([run]))
    assert "best: chosen on each client's training examples" in plain(by_run([run]))
