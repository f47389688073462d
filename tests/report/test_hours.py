"""Wall times beside the hours that the FedHBM paper prints (appendix B.2)."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from hpcfl.job.schema import load
from hpcfl.job.settings import flatten
from hpcfl.report import by_hours, to_csv, to_markdown
from hpcfl.report.choose_columns import ChosenColumn, choose_columns
from hpcfl.report.published import find
from hpcfl.run_dir.history import recorded_machines
from hpcfl.run_dir.record import RunRecord, with_history

ROOT = Path(__file__).parents[2]
GPU = {"session": "a", "ranks": 2, "device": "cuda", "gpu": "NVIDIA H100", "processor": "EPYC"}
CPU = {"session": "b", "ranks": 1, "device": "cpu", "processor": "EPYC"}


def record(*overrides, job="cifar10/fedavg_noniid", history=(GPU,), wall=(1.5, 2.0, 2.5)):
    """A run with a line of round 0, and rounds of 5000 examples."""
    settings = flatten(load(ROOT / f"jobs/{job}.yaml", overrides).tree)
    rounds = [
        {"round": t, "wall_s": s, "examples": 5000, "steps": 80} for t, s in enumerate(wall, 1)
    ]
    log = ({"round": 0, "wall_s": 3.0}, *rounds)
    name = settings["algorithm.name"]
    run = RunRecord(Path(name), name, settings["rounds"], 0, log, settings)
    return with_history(run, history)


def values(*runs):
    return list(csv.DictReader(io.StringIO(to_csv(by_hours(runs)))))


def test_wall_time_and_examples_by_hand():
    """3 + 1.5 + 2 + 2.5 = 9 s over 3 rounds; 6 h over 10 000 rounds are 2.16 s a round."""
    (table,) = by_hours([record()]).tables
    assert dict(zip(table.titles, *table.rows, strict=True)) == {
        "run": "fedavg",
        "algorithm": "fedavg",
        "rounds": "3/10000 unfinished",
        "examples": "15000",
        "local\nsteps": "240",
        "wall\ntime": "9.0 s",
        "s a\nround": "3",
        "published\ntime": "6:00:00",
        "published\nrounds": "10000",
        "published\ns a round": "2.16",
        "ran on": "2 ranks on cuda (NVIDIA H100)",
    }
    assert table.captions[-1] == (
        "published: FedHBM, appendix B.2, fedavg: about; one NVIDIA GeForce GTX 1070, clients in "
        "turn"
    )
    (row,) = values(record())
    assert (row["examples"], row["wall_s"], row["wall_s_per_round"]) == ("15000", "9.0", "3.0")
    assert row["local_steps"] == "240"
    assert (row["published_hours"], row["published_rounds"]) == ("6.0", "10000")
    assert row["published_s_per_round"] == "2.16"
    assert row["published_in"] == "FedHBM, appendix B.2"
    assert row["ran_on"] == "2 ranks on cuda (NVIDIA H100)"


def test_steps_are_unknown_where_an_earlier_version_did_not_log_them():
    run = record()
    log = ({"round": 0}, {"round": 1, "examples": 5000}, *run.log[2:])
    (row,) = values(replace(run, log=log))
    assert row["local_steps"] == ""
    (table,) = by_hours([replace(run, log=log), run]).tables
    column = table.titles.index("local\nsteps")
    assert [cells[column] for cells in table.rows] == ["-", "240"]


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


def test_a_set_up_without_printed_hours():
    """None for cross-device CIFAR, for SCAFFOLD, and for other numbers of steps or examples."""
    shorter = ("data.max_examples=100", "rounds=250")
    runs = [
        record("data.clients=500", "cohort.size=5"),
        record("algorithm={name: scaffold}"),
        record("local.epochs=5"),
        record("local.batch_size=32"),
        record(*shorter, job="shakespeare/fedavg_noniid"),
    ]
    (table,) = by_hours(runs).tables
    assert not [title for title in table.titles if title.startswith("published")]
    assert {row["published_hours"] for row in values(*runs)} == {""}


def test_the_machines_of_all_starts():
    """Each once and in order; of a copy, also those of the run that it was copied from."""
    branch = {"branch_of": "runs/other", "round": 5}
    assert recorded_machines([GPU, CPU, branch, CPU, GPU]) == (
        "2 ranks on cuda (NVIDIA H100)",
        "1 rank on cpu (EPYC)",
    )
    assert recorded_machines([{"session": "a", "ranks": 2}, {"session": "b"}]) == ()
    (table,) = by_hours([record(history=(GPU, CPU))]).tables
    assert table.rows[0][-1] == "2 ranks on cuda (NVIDIA H100), then 1 rank on cpu (EPYC)"


def test_a_run_that_only_just_began():
    run = record(wall=(), history=())
    assert values(run)[0]["wall_s_per_round"] == ""
    (table,) = by_hours([run]).tables
    assert "ran on" not in table.titles
    assert "s a\nround" not in table.titles


def test_the_command(job, hpcfl, tmp_path, refused):
    """The wall time is the sum over the log; there are no rounds to a target."""
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    (row,) = csv.DictReader(hpcfl("report", run, "--layout", "hours", "--format", "csv").out)
    assert float(row["wall_s"]) > 0
    assert int(row["local_steps"]) > 0
    assert row["ran_on"].startswith("1 rank on cpu (")
    assert "leave out --target" in refused("report", run, "--layout", "hours", "--target", "20")


def test_a_key_of_the_jobs_is_a_column():
    report = by_hours([record(), record("local.lr=0.3")])
    for values in (False, True):
        columns = ChosenColumn.parse("algorithm,local.lr")
        made = choose_columns(report, columns, values=values)
        assert "0.3" in (to_csv(made) if values else to_markdown(made)).splitlines()[-1]
