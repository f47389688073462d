"""A rate is chosen on validation data, and otherwise the report says that the test set chose it."""

from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.job.schema import load
from hpcfl.job.settings import flatten
from hpcfl.report import by_choice, by_run, by_seed, plain, to_csv, to_markdown
from hpcfl.report.choose_columns import ChosenColumn, choose_columns
from hpcfl.report.rounds_to_target import Target, with_target
from hpcfl.run_dir.record import RunRecord

JOB = Path(__file__).parents[2] / "jobs/quickstart.yaml"


def record(name, tests, validations=None, *overrides, algorithm="fedavg", rounds=None):
    """A run with an evaluation every round; ``validations``: None has no validation data."""
    data = [] if validations is None else ["data.validation.share=0.1"]
    chosen = [f"algorithm={{name: {algorithm}}}", *data, *overrides]
    settings = flatten(load(JOB, chosen).tree) | {"rounds": rounds or len(tests)}
    log = [{"round": t + 1, "test_accuracy": score} for t, score in enumerate(tests)]
    for entry, score in zip(log, validations or [], strict=False):
        entry["validation_accuracy"] = score
    return RunRecord(Path(name), algorithm, settings["rounds"], 0, tuple(log), settings)


@pytest.fixture
def rates():
    """The rate 0.2 is best on the test set, 0.1 on validation data."""
    return [
        record("a0", [0.5, 0.60], [0.5, 0.70], "local.lr=0.1"),
        record("a1", [0.5, 0.64], [0.5, 0.72], "local.lr=0.1", "seed=1"),
        record("b0", [0.5, 0.80], [0.5, 0.60], "local.lr=0.2"),
        record("b1", [0.5, 0.82], [0.5, 0.65], "local.lr=0.2", "seed=1"),
    ]


def without_validation(runs):
    names = ("test_accuracy", "round")
    return [
        RunRecord(
            run.path, run.algorithm, run.rounds, run.window,
            tuple({key: entry[key] for key in names} for entry in run.log), run.settings,
        )
        for run in runs
    ]  # fmt: skip


def test_a_rate_is_chosen_on_validation_data(rates):
    report = by_choice(rates)
    (table,) = report.tables
    assert list(table.titles)[1:] == [
        "settings", "jobs\ncompared", "seeds", "validation\n%", "test\n%"
    ]  # fmt: skip
    assert list(table.rows[0]) == [
        "fedavg", "local.lr 0.1", "2", "2", "71.00 +- 1.41", "62.00 +- 2.83"
    ]  # fmt: skip
    assert table.captions == [
        "settings: those with the highest validation accuracy after the last round, a mean over "
        "seeds",
        "settings: chosen on the validation data; the test score there is shown",
    ]
    (value,) = report.values
    assert (value["chosen_by"], value["settings"]) == ("validation_accuracy", "local.lr 0.1")
    assert value["test_accuracy"] == pytest.approx(0.62)


def test_else_on_the_test_set_and_a_caption_says_so(rates):
    (table,) = by_choice(without_validation(rates)).tables
    assert list(table.rows[0])[1:] == ["local.lr 0.2", "2", "2", "81.00 +- 1.41"]
    assert table.captions[-1] == "settings: chosen on the test set"


def test_a_choice_on_the_test_set_is_told_beside_every_score(rates):
    report = by_choice(without_validation(rates))

    def shown(text):
        made = choose_columns(report, ChosenColumn.parse(text), values=False)
        return "settings: chosen on the test set" in made.tables[0].captions

    assert shown("algorithm,test=Accuracy")
    assert shown("algorithm,settings")
    assert not shown("algorithm,seeds")


def test_keys_of_the_chosen_jobs_are_columns_and_the_best_is_bold(rates):
    others = [
        record("h", [0.5, 0.70], [0.5, 0.60], algorithm="fedhbm"),
        record("i", [0.5, 0.90], [0.5, 0.65], "local.lr=0.3", algorithm="fedhbm"),
    ]
    report = by_choice([*rates, *others])
    columns = ChosenColumn.parse("algorithm,local.lr=Rate,seed,validation,test")
    made = to_markdown(choose_columns(report, columns, values=False)).splitlines()
    assert made[2:4] == [
        "| fedavg | 0.1 | - | **71.00 +- 1.41** | 62.00 +- 2.83 |",
        "| fedhbm | 0.3 | 0 | 65.00 | **90.00** |",
    ]
    columns = ChosenColumn.parse("algorithm,local.lr,seed")
    made = to_csv(choose_columns(report, columns, values=True)).splitlines()
    assert made == ["algorithm,local.lr,seed", "fedavg,0.1,", "fedhbm,0.3,0"]


def test_validation_scores_are_bold(rates):
    assert "**71.00 +- 1.41**" in to_markdown(by_seed(rates))


def test_mixed_runs_are_told(rates):
    mixed = [*rates[:2], *without_validation(rates[2:])]
    (table,) = by_choice(mixed).tables
    assert table.captions[-1] == (
        "settings: chosen on the test set, as 2 of 4 runs have no validation data"
    )
    assert table.rows[0][1] == "local.lr 0.2"


def test_unfinished_settings_do_not_compete(rates):
    ahead = record("c", [0.99], [0.99], "local.lr=0.3", rounds=2)
    (table,) = by_choice([*rates, ahead]).tables
    assert list(table.rows[0])[1:3] == ["local.lr 0.1", "2 of 3"]
    (value,) = by_choice([*rates, ahead]).values
    assert (value["jobs"], value["compared"]) == (3, 2)
    with pytest.raises(JobError, match="no finished run has a test or validation score"):
        by_choice([ahead])


@pytest.mark.parametrize("place", [0, 4])
def test_a_run_without_a_score_has_no_part_in_what_is_chosen_on(rates, place):
    """Killed before its first evaluation, and the first of the list or the last."""
    rates.insert(place, record("k", [], [], "local.lr=0.3", rounds=2))
    report = by_choice(rates)
    assert report.values[0]["settings"] == "local.lr 0.1"
    assert report.values[0]["chosen_by"] == "validation_accuracy"
    for layout in (by_run, by_seed):
        assert {row["chosen_on"] for row in layout(rates).values} == {"validation"}
        assert "best: chosen on the validation data" in plain(layout(rates))


def test_the_luck_of_one_seed_does_not_decide(rates):
    """The rate 0.3 is far ahead with its only finished seed; the other is unfinished, or absent."""
    lucky = record("c0", [0.99, 0.99], [0.99, 0.99], "local.lr=0.3")
    behind = record("c1", [0.1], [0.1], "local.lr=0.3", "seed=1", rounds=2)
    for more in ([lucky, behind], [lucky]):
        (table,) = by_choice([*rates, *more]).tables
        assert list(table.rows[0])[1:4] == ["local.lr 0.1", "2 of 3", "2"]
        assert any(line.startswith("jobs compared: those with a finite") for line in table.captions)
    (table,) = by_choice([*rates, lucky, replace(behind, rounds=1)]).tables
    assert list(table.rows[0])[1:4] == ["local.lr 0.1", "3", "2"]
    (table,) = by_choice([lucky, record("d", [0.1], [0.1], "seed=1", rounds=2)]).tables
    assert table.rows[0][1] == "local.lr 0.3"


def test_losses_choose_where_there_are_no_accuracies():
    def regression(name, validation, test, rate):
        made = record(name, [0.0], [], f"local.lr={rate}")
        line = {"round": 1, "validation_loss": validation, "test_loss": test}
        return RunRecord(made.path, "fedavg", 1, 0, (line,), made.settings)

    (table,) = by_choice([regression("a", 2.0, 1.0, 0.1), regression("b", 1.5, 3.0, 0.2)]).tables
    assert list(table.rows[0])[1:] == ["local.lr 0.2", "2", "1", "1.5", "3"]


def test_the_best_round_is_chosen_alike():
    """Round 1 by validation, round 2 by tests; with a run that has none, all by tests."""
    run = record("a", [0.6, 0.8], [0.9, 0.7])
    other = record("b", [0.5, 0.4])
    assert run.best == (1, 0.6)
    assert "60.00 @1" in to_markdown(by_run([run]))
    for layout in (by_run, by_seed):
        (caption,) = [line for line in layout([run]).tables[-1].captions if "best" in line]
        assert caption == "best: chosen on the validation data; the test score there is shown"
        (caption,) = [line for line in layout([run, other]).tables[-1].captions if "best" in line]
        assert caption == "best: chosen on the test set, as 1 of 2 runs has no validation data"
    shown = to_markdown(by_run([run, other]))
    assert "80.00 @2" in shown
    assert "best: chosen on the test set\n" in to_markdown(by_run([other]))


def test_a_baseline_is_chosen_on_validation_data():
    """FedAvg with rate 0.1 is there first by validation, with 0.2 by tests."""
    runs = [
        record("slow", [0.1, 0.2, 0.3, 0.9], [0.9, 0.9, 0.9, 0.9], "local.lr=0.1"),
        record("fast", [0.1, 0.9, 0.9, 0.9], [0.1, 0.1, 0.9, 0.9], "local.lr=0.2"),
        record("hbm", [0.1, 0.9], [0.1, 0.9], "local.lr=0.3", algorithm="fedhbm", rounds=4),
    ]
    target = Target(0.8, absolute=True)
    found = with_target(runs, target)
    assert {c.title: c.cells[2] for c in found.columns}["speed-up\nx"] == "2.00"
    assert "2 fedavg jobs (chosen on the validation data)" in found.captions[-1]
    found = with_target(without_validation(runs), target)
    assert {c.title: c.cells[2] for c in found.columns}["speed-up\nx"] == "1.00"
    assert "2 fedavg jobs (chosen on the test set)" in found.captions[-1]


def test_a_last_score_that_is_not_finite_is_not_replaced_by_an_earlier_one():
    """The log has null for it."""
    runs = [record("bad", [0.5, None], None, "local.lr=1.0"), record("good", [0.3, 0.4])]
    assert isnan(runs[0].last("test_accuracy"))
    (value,) = by_choice(runs).values
    assert (value["jobs"], value["compared"]) == (2, 1)
    assert "nan" in plain(by_run(runs))
    assert record("none", [None]).last("test_accuracy") is None
