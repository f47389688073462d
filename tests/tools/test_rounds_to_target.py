import csv
import io
from pathlib import Path

import pytest

from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.runs.job_file.settings import flatten
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report import as_papers, by_run, by_seed, plain, to_csv, to_markdown
from hpcfl.tools.report.comparison import with_published
from hpcfl.tools.report.rounds_to_target import Target, with_target

ROOT = Path(__file__).parents[2]


def record(name, accuracies, *overrides, rounds=None, job="cifar10/fedavg_noniid"):
    """A run with an evaluation every 10 rounds."""
    settings = flatten(load(ROOT / f"jobs/{job}.yaml", overrides).tree)
    settings["rounds"] = rounds or 10 * len(accuracies)
    log = tuple(
        {"round": 10 * (k + 1), "test_accuracy": accuracy} for k, accuracy in enumerate(accuracies)
    )
    algorithm = settings["algorithm.name"]
    return RunRecord(Path(name), algorithm, settings["rounds"], 0, log, settings)


HBM = "algorithm={name: fedhbm}"
CM = "algorithm={name: fedcm}"
COSINE = "local.schedule=cosine"
BY_STEP = "local.epochs=null", "local.steps=5", "local.step_schedule=cosine"


def seed_rows(runs, beside=None):
    (table,) = by_seed(runs, beside).tables
    return [list(table.titles), *map(list, table.rows)]


@pytest.fixture
def runs():
    return [
        record("avg", [0.1, 0.2, 0.3, 0.61]),
        record("hbm", [0.1, 0.6055, 0.4, 0.7], HBM),
        record("cm", [0.1, 0.2, 0.3, 0.4], "algorithm={name: fedcm}"),
    ]


def cells(beside, runs):
    shown = [column for column in beside.columns if column.title is not None]
    return {column.title: [column.cell(run) for run in runs] for column in shown}


def values(beside, key, runs):
    (column,) = [column for column in beside.columns if column.key == key]
    return [column.value(run) for run in runs]


def test_the_rounds_to_seventy_percent_of_the_centralised(runs):
    """0.7 x 86.48 % is 60.536 %: reached at round 40 and at round 20."""
    beside = with_target(runs, Target(70))
    assert cells(beside, runs) == {
        "rounds\nto 70 %": ["40", "20", "-"],
        "speed-up\nx": ["1.00", "2.00", "-"],
        "published\nrounds": ["5520", "770", "5400"],
    }
    assert "70 % of the centralised 86.48 % (cifar10 with lenet" in beside.captions[0]
    assert beside.captions[1] == "published rounds: FedHBM, table 2"
    assert beside.captions[2].startswith(
        "speed-up: rounds of the fedavg run of the same seed and se"
    )


def test_what_the_paper_never_reached(runs):
    assert cells(with_target(runs, Target(90)), runs)["published\nrounds"] == [
        "never",
        "2560",
        "never",
    ]


def test_an_accuracy_of_ones_own(runs):
    assert cells(with_target(runs, Target(0.3, absolute=True)), runs) == {
        "rounds\nto 0.3": ["30", "20", "30"],
        "speed-up\nx": ["1.00", "1.50", "1.00"],
    }


def test_columns_stay_where_nobody_arrives(runs):
    beside = with_target(runs, Target(0.99, absolute=True))
    assert "| rounds to 0.99 | speed-up x |" in to_markdown(by_run(runs, beside))


def test_a_speedup_is_over_fedavg_of_the_same_set_up_and_seed(runs):
    others = [
        record("seed", [0.1, 0.61], HBM, "seed=1"),
        record("split", [0.1, 0.61], HBM, "data.partition.alpha=0.3"),
        record("slow", [0.0] * 7 + [0.7], "local.lr=0.001"),
    ]
    found = cells(with_target([*runs, *others], Target(0.6, absolute=True)), [*runs, *others])
    assert found["speed-up\nx"] == ["1.00", "2.00", "-", "-", "-", "1.00"]


def speed_ups(runs, target=0.6):
    return with_target(runs, Target(target, absolute=True))


def test_the_baseline_agrees_in_every_setting_but_the_algorithms_own():
    """Not the run of another rate, though that one arrived first."""
    runs = [
        record("a-slow", [0.1] * 5 + [0.7], "local.lr=0.1"),
        record("a-fast", [0.1, 0.7], "local.lr=0.5"),
        record("scaffold", [0.1] * 2 + [0.7], "algorithm={name: scaffold}", "local.lr=0.1"),
    ]
    beside = speed_ups(runs)
    assert cells(beside, runs)["speed-up\nx"] == ["1.00", "1.00", "2.00"]
    assert not any(line.startswith("speed-up of") for line in beside.captions)
    assert values(beside, "speedup_0.6_baseline", runs) == ["a-slow", "a-fast", "a-slow"]


def test_a_baseline_of_other_rates_is_told():
    """As where each method has the rate it was tuned to."""
    runs = [
        record("avg0", [0.1] * 6 + [0.7], "local.lr=0.5"),
        record("avg1", [0.1] * 2 + [0.7], "local.lr=0.5", "seed=1"),
        record("cm0", [0.1, 0.7], CM, "local.lr=1.0"),
        record("cm1", [0.1, 0.7], CM, "local.lr=1.0", "seed=1"),
    ]
    beside = speed_ups(runs)
    assert cells(beside, runs)["speed-up\nx"] == ["1.00", "1.00", "3.50", "1.50"]
    assert beside.captions[-1] == (
        "speed-up over other rates: cm0 over avg0 (local.lr 0.5 instead of 1.0); "
        "cm1 over avg1 (local.lr 0.5 instead of 1.0)"
    )
    told = values(beside, "speedup_0.6_baseline", runs)
    assert told[-2:] == [f"avg{k} (local.lr 0.5 instead of 1.0)" for k in (0, 1)]
    assert "avg0 (local.lr 0.5 instead of 1.0)" in to_csv(by_run(runs, beside))
    assert plain(as_papers(runs, [Target(0.6, absolute=True)])).endswith(beside.captions[-1] + "\n")


def test_of_several_other_rates_none_is_the_baseline():
    runs = [
        record("slow", [0.1] * 5 + [0.7], "local.lr=0.1"),
        record("fast", [0.1] * 2 + [0.7], "local.lr=0.5"),
        record("cm", [0.1, 0.7], CM, "local.lr=1.0"),
    ]
    assert cells(speed_ups(runs), runs)["speed-up\nx"] == ["1.00", "1.00", "-"]


def test_of_two_servers_none_is_the_baseline():
    server = "algorithm={name: fedavg, server_lr: 0.5}"
    runs = [record("a", [0.7]), record("b", [0.1, 0.7], server), record("h", [0.7], HBM)]
    assert cells(speed_ups(runs), runs)["speed-up\nx"] == ["-"] * 3


@pytest.mark.parametrize(
    "override",
    [
        "local.epochs=2",
        "local.batch_size=32",
        "weights=uniform",
        "cohort.size=20",
        "data.clients=50",
        "evaluate.every=3",
    ],
)
def test_a_run_of_another_kind_has_no_baseline(override):
    runs = [record("avg", [0.1, 0.7]), record("hbm", [0.7], HBM, override)]
    beside = speed_ups(runs)
    assert cells(beside, runs)["speed-up\nx"] == ["1.00", "-"]
    assert values(beside, "speedup_0.6_baseline", runs) == ["avg", None]


def test_where_files_lie_and_how_long_a_run_is_do_not_count():
    runs = [
        record("avg", [0.1, 0.7]),
        record("hbm", [0.7] * 9, HBM, "data.root=elsewhere", "threads=2", "checkpoint.every=7"),
    ]
    assert len(speed_ups(runs).captions) == 2
    for schedule in ([COSINE], BY_STEP):
        late = [
            record("avg", [0.1, 0.7], *schedule, rounds=20),
            record("hbm", [0.1, 0.7], HBM, *schedule, rounds=90),
        ]
        assert "hbm over avg (rounds 20 instead of 90)" in speed_ups(late).captions[-1]


@pytest.mark.parametrize("order", [1, -1])
def test_of_runs_of_one_seed_and_other_lengths_the_one_that_arrived_is_the_baseline(order):
    """The shorter run is the start of the longer one: it has not arrived yet."""
    averages = [
        record("short", [0.1] * 2),
        record("long", [0.1] * 3 + [0.7]),
        record("middle", [0.1] * 3),
    ]
    runs = [*averages[::order], record("hbm", [0.1, 0.7], HBM)]
    beside = speed_ups(runs)
    assert cells(beside, runs)["speed-up\nx"][-1] == "2.00"
    assert values(beside, "speedup_0.6_baseline", runs) == ["long"] * 4
    beside = speed_ups(runs, target=0.9)  # nobody arrives: the one that can say most
    assert values(beside, "speedup_0.9_baseline", runs) == ["long"] * 4


def csv_rows(report):
    return list(csv.DictReader(io.StringIO(to_csv(report))))


def mean_and_count(values):
    return (sum(values) / len(values) if values else None, len(values))


def numbers(runs, target):
    """(mean, of how many) of rounds and speed-up of each algorithm, as each layout has them."""
    beside = with_target(runs, target)
    keys = {"target_round_0.6": "rounds_to_0.6", "speedup_0.6": "speedup_0.6"}
    each, means, papers = {}, {}, {}
    for row in csv_rows(by_run(runs, beside)):
        for key in keys:
            found = each.setdefault((row["algorithm"], key), [])
            found += [float(row[key])] if row[key] else []
    for row in csv_rows(by_seed(runs, beside)):
        for key in keys:
            mean = float(row[key]) if row[key] else None
            means[row["algorithm"], key] = mean, int(row[f"{key}_n"])
    for row in csv_rows(as_papers(runs, [target])):
        for key, metric in keys.items():
            if row["metric"] == metric:
                mean = float(row["mean"]) if row["mean"] else None
                papers[row["algorithm"], key] = mean, int(row["n"])
    return {place: mean_and_count(values) for place, values in each.items()}, means, papers


def test_all_layouts_have_the_same_numbers():
    """One seed of three has a baseline, one more an arrival; one run is not finished."""
    runs = [
        record("a0", [0.1] * 5 + [0.7]),
        record("a1", [0.1] * 6, "seed=1"),  # never arrives
        record("h0", [0.1, 0.7], HBM, rounds=40),  # goes on
        record("h1", [0.1, 0.1, 0.1, 0.7], HBM, "seed=1"),
        record("h2", [0.1, 0.1, 0.1, 0.1], HBM, "seed=2"),
        record("c0", [0.1], CM),
    ]
    by_runs, by_seeds, by_papers = numbers(runs, Target(0.6, absolute=True))
    assert by_runs["fedhbm", "target_round_0.6"] == (30.0, 2)
    assert by_runs["fedhbm", "speedup_0.6"] == (3.0, 1)
    assert by_seeds == by_papers == by_runs
    beside = with_target(runs, Target(0.6, absolute=True))
    titles, _, fedhbm, _ = seed_rows(runs, beside)
    assert fedhbm[titles.index("rounds\nto 0.6")] == "30 +- 14 (n=2 of 3)"
    assert fedhbm[titles.index("speed-up\nx")] == "3.00 (n=1 of 3)"
    _, table = as_papers(runs, [Target(0.6, absolute=True)]).tables
    assert table.rows[1][1] == "30 +- 14 (3.00x, n=1) (n=2 of 3)"


def test_without_fedavg_there_is_no_speedup(runs):
    assert "speed-up\nx" not in cells(with_target(runs[1:], Target(70)), runs[1:])


def test_means_over_seeds():
    runs = [
        record("a0", [0.1, 0.2, 0.7, 0.7]),
        record("a1", [0.1, 0.2, 0.3, 0.7], "seed=1"),
        record("h0", [0.7, 0.7, 0.7, 0.7], HBM),
        record("h1", [0.1, 0.7, 0.7, 0.7], HBM, "seed=1"),
    ]
    beside = with_target(runs, Target(70)).joined(with_published(runs))
    titles, fedavg, fedhbm = seed_rows(runs, beside)
    where = [titles.index(c.title) for c in beside.columns if c.title is not None]
    assert [fedavg[k] for k in where] == ["35 +- 7", "1.00 +- 0.00", "5520", "66.12 +- 0.32"]
    # 30/10 and 40/20
    assert [fedhbm[k] for k in where] == ["15 +- 7", "2.50 +- 0.71", "770", "81.71 +- 0.15"]
    unfinished = [record("u0", [0.7], rounds=20), record("u1", [0.7], "seed=1", rounds=20)]
    assert seed_rows(unfinished, with_published(unfinished))[1][1:] == ["0 of 2", "66.12 +- 0.32"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ((0,), "--target: found 0, expected above 0, at most 100"),
        ((101,), "at most 100"),
        ((60, True), "--target-accuracy: found 60, expected above 0, at most 1; 60 % is 0.6"),
        ((float("nan"),), "found nan"),
    ],
)
def test_targets_that_are_none(target, message):
    with pytest.raises(JobError, match=message):
        Target(*target)


def test_a_run_of_which_no_centralised_accuracy_is_printed():
    run = record("q", [0.5], job="sweeps/../quickstart")
    with pytest.raises(
        JobError, match="q: no paper prints a centralised accuracy of linear on dig"
    ):
        with_target([run], Target(70))


def test_published_numbers_stand_beside_ours(runs):
    runs.append(record("ghb", [0.5], "algorithm={name: ghb}"))
    beside = with_published(runs)
    assert cells(beside, runs) == {
        "published\n%": ["66.12 +- 0.32", "81.71 +- 0.15", "69.01 +- 0.26", "-"]
    }
    shorter = "mean test accuracy of the last 100 rounds; ours after 40 of 10 000 rounds"
    assert beside.captions == (f"published: FedHBM, tables 3, 11: {shorter}",)
    assert plain(by_run(runs, beside)).splitlines()[-1] == beside.captions[0]
    assert to_markdown(by_run(runs, beside)).endswith(f"\n- {beside.captions[0]}\n")
    row, *_, last = csv.DictReader(io.StringIO(to_csv(by_run(runs, beside))))
    assert (row["published"], row["published_std"]) == ("0.6612", "0.0032")
    assert row["published_in"] == "FedHBM table 3, FedHBM table 11"
    assert last["published"] == ""


def test_a_note_is_told():
    runs = [record("m", [0.5], "algorithm={name: feddyn}", "task=cifar100-lenet")]
    beside = with_published(runs)
    assert cells(beside, runs) == {"published\n%": ["nan"]}
    assert "FedHBM, table 3, feddyn: printed as NaN: it does not converge" in beside.captions


def test_nothing_is_said_where_nothing_is_printed():
    runs = [record("g", [0.5], "algorithm={name: ghb}")]
    beside = with_published(runs)
    assert not beside.columns
    assert plain(by_run(runs, beside)) == plain(by_run(runs))
    assert "published" not in to_csv(by_run(runs, beside))


def test_the_last_hundred_rounds():
    """Only where each of them was made and evaluated."""
    every = [{"round": t, "test_accuracy": t / 1000} for t in range(251)]
    whole = RunRecord(Path("w"), "fedavg", 250, 0, tuple(every))
    assert whole.accuracy_last100 == pytest.approx(0.2005)  # the mean of 151 to 250
    assert RunRecord(Path("s"), "fedavg", 50, 100, tuple(every[:51])).accuracy_last100 is None
    # Its hundred evaluations are of the initial model and of 99 rounds.
    assert RunRecord(Path("n"), "fedavg", 99, 99, tuple(every[:100])).accuracy_last100 is None
    assert RunRecord(Path("u"), "fedavg", 260, 0, tuple(every)).accuracy_last100 is None
    gap = [entry for entry in every if entry["round"] != 200]
    assert RunRecord(Path("g"), "fedavg", 250, 0, tuple(gap)).accuracy_last100 is None
    assert "| last 100 % |" in to_markdown(by_run([whole]))
    assert "| 20.05 |" in to_markdown(by_run([whole]))
