"""A rate is chosen on validation data, and otherwise the report says that the test set chose it."""

from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

import hpcfl as fl
from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.runs.job_file.settings import flatten
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report import by_run, by_seed, plain, to_markdown
from hpcfl.tools.report.choose import choose_settings
from hpcfl.tools.report.layouts import LAYOUTS, arranged

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


def names(chosen):
    return [run.path.name for run in chosen.runs]


HIGHEST = "settings: those with the highest {} accuracy after the last round, a mean over seeds"


def test_a_rate_is_chosen_on_validation_data(rates):
    chosen = choose_settings(rates)
    assert names(chosen) == ["a0", "a1"]
    assert chosen.captions == [HIGHEST.format("validation")]
    assert chosen.choices == ["fedavg: local.lr 0.1 (of 2 jobs)"]
    assert chosen.note == "settings chosen on the validation data"


def test_else_on_the_test_set_and_a_caption_says_so(rates):
    chosen = choose_settings(without_validation(rates))
    assert names(chosen) == ["b0", "b1"]
    assert chosen.captions == [
        HIGHEST.format("test"),
        "settings: chosen on the test set",
    ]
    assert chosen.choices == ["fedavg: local.lr 0.2 (of 2 jobs)"]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "time"])
def test_every_layout_shows_the_choice_alone(rates, layout):
    chosen = choose_settings(rates)
    made = arranged(chosen, layout)
    assert "62.00 +- 2.83" in plain(made)
    assert "81.00" not in plain(made)
    assert made.tables[-1].captions[-1] == chosen.captions[-1]
    assert all(line in to_markdown(made) for line in [*chosen.captions, *chosen.choices])


def test_each_method_has_its_own_choice(rates):
    others = [
        record("h", [0.5, 0.70], [0.5, 0.60], algorithm="fedhbm"),
        record("i", [0.5, 0.90], [0.5, 0.65], "local.lr=0.3", algorithm="fedhbm"),
    ]
    chosen = choose_settings([*rates, *others])
    assert names(chosen) == ["a0", "a1", "i"]
    assert chosen.choices == [
        "fedavg: local.lr 0.1 (of 2 jobs)",
        "fedhbm: local.lr 0.3 (of 2 jobs)",
    ]


def test_each_set_up_has_its_own_choice(rates):
    splits = [
        record("c", [0.5, 0.5], [0.5, 0.5], "local.lr=0.1", "data.partition={kind: iid}"),
        record("d", [0.6, 0.6], [0.6, 0.6], "local.lr=0.2", "data.partition={kind: iid}"),
    ]
    chosen = choose_settings([*rates, *splits])
    assert names(chosen) == ["a0", "a1", "d"]
    assert chosen.choices[-1] == "fedavg, digits, iid, validation: local.lr 0.2 (of 2 jobs)"


def test_mixed_runs_are_told(rates):
    chosen = choose_settings([*rates[:2], *without_validation(rates[2:])])
    told = "settings: chosen on the test set, as 2 of 4 runs have no validation data"
    assert chosen.captions[-1] == told
    assert chosen.choices == ["fedavg: local.lr 0.2 (of 2 jobs)"]


def test_unfinished_settings_do_not_compete(rates):
    ahead = record("c", [0.99], [0.99], "local.lr=0.3", rounds=2)
    chosen = choose_settings([*rates, ahead])
    assert names(chosen) == ["a0", "a1"]
    assert chosen.choices[-1] == "fedavg: local.lr 0.1 (of 2 of 3 jobs)"
    alone = record("h", [0.99], [0.99], algorithm="fedhbm", rounds=2)
    told = "fedhbm: none, no job has a finite score of every seed"
    assert choose_settings([*rates, alone]).choices[-1] == told
    with pytest.raises(JobError, match="no finished run has a test or validation score"):
        choose_settings([ahead])


@pytest.mark.parametrize("place", [0, 4])
def test_a_run_without_a_score_has_no_part_in_what_is_chosen_on(rates, place):
    """Killed before its first evaluation, and the first of the list or the last."""
    rates.insert(place, record("k", [], [], "local.lr=0.3", rounds=2))
    assert names(choose_settings(rates)) == ["a0", "a1"]
    for layout in (by_run, by_seed):
        assert {row["chosen_on"] for row in layout(rates).values} == {"validation"}
        assert "best: chosen on the validation data" in plain(layout(rates))


def test_the_luck_of_one_seed_does_not_decide(rates):
    """The rate 0.3 is far ahead with its only finished seed; the other is unfinished, or absent."""
    lucky = record("c0", [0.99, 0.99], [0.99, 0.99], "local.lr=0.3")
    behind = record("c1", [0.1], [0.1], "local.lr=0.3", "seed=1", rounds=2)
    for more in ([lucky, behind], [lucky]):
        chosen = choose_settings([*rates, *more])
        assert names(chosen) == ["a0", "a1"]
        assert any(line.startswith("jobs compared: those with") for line in chosen.captions)
    assert names(choose_settings([*rates, lucky, replace(behind, rounds=1)])) == ["a0", "a1"]
    assert names(choose_settings([lucky, record("d", [0.1], [0.1], "seed=1", rounds=2)])) == ["c0"]


def test_losses_choose_where_there_are_no_accuracies():
    def regression(name, validation, test, rate):
        made = record(name, [0.0], [], f"local.lr={rate}")
        line = {"round": 1, "validation_loss": validation, "test_loss": test}
        return RunRecord(made.path, "fedavg", 1, 0, (line,), made.settings)

    chosen = choose_settings([regression("a", 2.0, 1.0, 0.1), regression("b", 1.5, 3.0, 0.2)])
    assert names(chosen) == ["b"]


def test_the_command(job, tmp_path, hpcfl):
    """The table, the plot and Python have the same choice."""
    for rate in (0.0001, 0.2):
        words = (f"local.lr={rate}", "--out", tmp_path / "runs" / f"lr{rate}")
        assert hpcfl("run", job, *words).code == 0
    plot = tmp_path / "p.svg"
    done = hpcfl("report", tmp_path / "runs", "--chosen", "--plot", plot)
    assert done.code == 0, done.err
    assert "fedhbm: local.lr 0.2 (of 2 jobs)" in done.out
    assert not any("lr0.0001" in line for line in done.out)
    report = fl.report_runs(tmp_path / "runs", chosen=True)
    assert [run.path.name for run in report.runs] == ["lr0.2"]
    assert "fedhbm: local.lr 0.2" in str(report)


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


def test_a_last_score_that_is_not_finite_is_not_replaced_by_an_earlier_one():
    """The log has null for it."""
    runs = [record("bad", [0.5, None], None, "local.lr=1.0"), record("good", [0.3, 0.4])]
    assert isnan(runs[0].last("test_accuracy"))
    assert choose_settings(runs).choices[-1] == "fedavg: local.lr 0.1 (of 1 of 2 jobs)"
    assert "nan" in plain(by_run(runs))
    assert record("none", [None]).last("test_accuracy") is None
