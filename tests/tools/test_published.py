import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.job.load import load
from hpcfl.runs.job_file.settings import flatten
from hpcfl.tools.report.published import centralised, find, published, set_up
from tests.jobs.every import sweep

ROOT = Path(__file__).parents[2]
SAYING = re.compile(r"FedHBM paper, table (\d+): ([\d.]+) %")
NONIID = "jobs/cifar10/fedhbm_noniid.yaml"


def settings(path, *overrides):
    return flatten(load(ROOT / path, overrides).tree)


def accuracies(job):
    return find(job, "accuracy_last", "accuracy_last10", "accuracy_last100")


def test_every_table_is_whole():
    counts = Counter((row.paper, row.table, row.metric.partition("_")[0]) for row in published())
    assert counts == {
        ("FedHBM", "2", "overhead"): 12,
        ("FedHBM", "2", "rounds"): 72,
        ("FedHBM", "2", "speedup"): 36,
        ("FedHBM", "3", "accuracy"): 72,
        ("FedHBM", "4", "accuracy"): 60,
        ("FedHBM", "5", "accuracy"): 20,
        ("FedHBM", "5", "overhead"): 5,
        ("FedHBM", "6", "accuracy"): 6,
        ("FedHBM", "9", "overhead"): 10,
        ("FedHBM", "9", "rounds"): 60,
        ("FedHBM", "9", "speedup"): 18,
        ("FedHBM", "10", "accuracy"): 36,
        ("FedHBM", "11", "accuracy"): 66,
        ("FedHBM", "appendix B.2", "hours"): 19,
        ("FedCM", "1", "accuracy"): 20,
        ("FedCM", "2", "accuracy"): 20,
        ("FedCM", "3", "accuracy"): 6,
        ("FedMIM", "I", "accuracy"): 63,
        ("FedMIM", "II", "accuracy"): 63,
        ("FedMIM", "III", "accuracy"): 9,
        ("SCAFFOLD slides", "Why take more than 1 step?", "speedup"): 2,
    }
    assert {row.set_up["algorithm"] for row in published()} <= set(ALGORITHMS)


def test_printed_speedups_are_the_ratios_of_the_printed_rounds():
    rounds = {
        (row.table, row.set_up["clients"], row.set_up["algorithm"], row.metric[-2:]): row.value
        for row in published()
        if row.metric.startswith("rounds_to")
    }
    ratios = [row for row in published() if re.fullmatch(r"speedup_\d+", row.metric)]
    assert len(ratios) == 54
    for row in ratios:
        key = (row.table, row.set_up["clients"], row.set_up["algorithm"], row.metric[-2:])
        fedavg = rounds[(*key[:2], "fedavg", key[3])]
        assert row.value == pytest.approx(fedavg / rounds[key], abs=0.006)


def agree(one, other):
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def test_no_job_has_two_different_numbers():
    """Of one metric and length: what two rows may both belong to, they print alike."""
    rows = [row for row in published() if row.metric != "overhead"]
    for one, other in combinations(rows, 2):
        if (one.metric, one.rounds) == (other.metric, other.rounds) and one.value == one.value:
            both = agree(one.set_up, other.set_up) and agree(one.settings, other.settings)
            assert not both or (one.value, one.std) == (other.value, other.std), (one, other)


JOBS = [path for path in sorted(ROOT.glob("jobs/**/*.yaml")) if SAYING.search(path.read_text())]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_job_finds_the_number_that_its_comment_quotes(path):
    table, value = SAYING.search(path.read_text()).groups()
    found = accuracies(settings(path))
    assert table in [row.table for row in found]
    assert {row.value for row in found} == {float(value)}


def test_there_are_such_jobs():
    assert len(JOBS) > 5


BEHIND = re.compile(r"^    (\w+): {algorithm: .*}  # ([\d.]+), ([\d.]+)$", re.MULTILINE)
QUOTING = [
    (path, *found)
    for path in sorted((ROOT / "jobs/papers").glob("*.yaml"))
    for found in BEHIND.findall(path.read_text())
]


@pytest.mark.parametrize(
    ("path", "method", "noniid", "iid"), QUOTING, ids=[f"{row[0].stem}-{row[1]}" for row in QUOTING]
)
def test_a_sweep_finds_the_numbers_that_stand_behind_its_methods(path, method, noniid, iid):
    for split, value in (("noniid", noniid), ("iid", iid)):
        (point,) = sweep(path).only([method, split, "seed0"]).points
        found = {row.value for row in accuracies(flatten(point.loaded.tree))}
        assert found == {float(value)}


def test_three_sweeps_quote_the_numbers_of_twelve_methods():
    assert len(QUOTING) == 36


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.partition.alpha=0.3"],
        ["data.partition={kind: iid}"],
        ["data.clients=200"],
        ["data.holdout=0.1"],
        ["cohort.size=5"],
        ["cohort={kind: bernoulli, p: 0.1}"],
        ["task=cifar100-lenet", "cohort.size=20"],
        ["model.name=linear"],
        ["algorithm={name: ghb}"],
    ],
)
def test_another_set_up_finds_nothing(overrides):
    assert [row.value for row in accuracies(settings(NONIID))] == [81.71, 81.71]
    assert not accuracies(settings(NONIID, *overrides))


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("task=cifar10-resnet20", 83.39),
        ("task=cifar100-lenet", 50.41),
        ("task=cifar100-resnet20", 42.46),
        ("data.partition.alpha=10000.0", 83.83),
        ("algorithm.nesterov=true", 81.93),
        ("algorithm={name: scaffold}", 74.83),
        ("local.lr=0.5", 81.71),
        ("precision=bf16", 81.71),
        ("rounds=60", 81.71),
    ],
)
def test_what_one_key_changes(override, value):
    assert {row.value for row in accuracies(settings(NONIID, override))} == {value}


@pytest.mark.parametrize(
    "override", ["data.max_examples=1000", "data.max_examples=null", "data.clients=50"]
)
def test_other_roles_of_shakespeare_find_nothing(override):
    assert not accuracies(settings("jobs/shakespeare/fedhbm_noniid.yaml", override))


MIM = {
    "data.kind": "cifar10", "model.name": "resnet18", "data.partition.kind": "dirichlet",
    "data.partition.alpha": 0.6, "data.partition.form": "symmetric", "data.clients": 100,
    "data.colour.brightness": 0.5, "cohort.kind": "uniform", "cohort.size": 10,
    "local.epochs": 5, "algorithm.name": "fedmim", "algorithm.alpha": [0.6, 0.3],
    "algorithm.beta": [0.9, 0.1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "tables"), [(500, ["III"]), (1000, ["II"]), (60, ["III"]), (4000, ["II"])]
)
def test_the_run_of_the_nearest_length_counts(rounds, tables):
    assert [row.table for row in accuracies({**MIM, "rounds": rounds})] == tables


def test_colours_are_part_of_the_split():
    assert set_up(MIM)["split"] == "symmetric dirichlet 0.6, colour"
    assert set_up({**MIM, "data.colour.brightness": 0.0})["split"] == "symmetric dirichlet 0.6"
    assert set_up({**MIM, "data.partition.form": "prior"})["split"] == "dirichlet 0.6, colour"
    assert set_up({**MIM, "data.partition.alpha": 0.0})["split"] == "dirichlet 0, colour"


def test_the_centralised_accuracy_of_data_and_model():
    assert centralised(settings(NONIID)).value == 86.48
    assert centralised(settings(NONIID, "task=cifar100-resnet20")).value == 62.21
    assert centralised(settings("jobs/quickstart.yaml")) is None


@pytest.mark.parametrize(
    ("job", "overrides", "hours", "rounds"),
    [
        ("cifar10/fedavg_noniid", [], 6, 10_000),
        ("cifar10/fedavg_noniid", ["data.partition.alpha=10000.0"], 6, 10_000),
        ("cifar10/fedavg_noniid", ["task=cifar10-resnet20"], 7, 10_000),
        ("cifar10/fedavg_noniid", ["task=cifar100-lenet", "rounds=20000"], 6, 10_000),
        ("cifar10/fedavg_noniid", ["algorithm={name: mime}"], 12, 10_000),
        ("cifar10/fedavg_noniid", ["algorithm={name: mimelitemom}"], 12, 10_000),
        ("shakespeare/fedavg_noniid", [], pytest.approx(22 / 60, abs=1e-6), 250),
        ("papers/base/stackoverflow", [], 3.5, 1500),
    ],
)
def test_the_printed_hours_of_a_set_up(job, overrides, hours, rounds):
    (row,) = find(flatten(load(ROOT / f"jobs/{job}.yaml", overrides).tree), "hours")
    assert (row.value, row.rounds) == (hours, rounds)


def test_a_run_with_devices_repeats_no_paper():
    assert accuracies(settings(NONIID))
    assert not accuracies(settings(NONIID, "devices={available: 0.5}"))
