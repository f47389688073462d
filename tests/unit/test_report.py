import csv
import io
import json

import pytest
from rich.console import Console

from hpcfl.errors import JobError, StoreError
from hpcfl.report import plain, read_run, table, to_csv, to_markdown

JOB = "rounds: 4\nalgorithm: {name: fedhbm, beta: 1.0}\nevaluate: {every: 2, last: 2}\n"
LOG = [
    {"round": 0, "test_loss": 2.5, "test_accuracy": 0.125},
    {"round": 1, "wall_s": 1.5, "clients": 2, "train_loss": 2.0, "down_bytes": 10, "up_bytes": 20},
    {"round": 2, "wall_s": 1.5, "clients": 2, "train_loss": 1.5, "down_bytes": 10, "up_bytes": 20,
     "test_loss": 1.25, "test_accuracy": 0.5},
    {"round": 3, "wall_s": 1.5, "clients": 2, "train_loss": 1.0, "down_bytes": 10, "up_bytes": 20,
     "test_loss": 0.75, "test_accuracy": 0.875},
    {"round": 4, "wall_s": 1.5, "clients": 2, "train_loss": 0.5, "down_bytes": 10, "up_bytes": 20,
     "test_loss": 0.5, "test_accuracy": 0.625},
]  # fmt: skip


@pytest.fixture
def run_dir(tmp_path):
    def make(log=LOG, job=JOB, name="a-run", tail=""):
        path = tmp_path / name
        path.mkdir()
        (path / "job.yaml").write_text(job)
        (path / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in log) + tail)
        return path

    return make


def test_a_finished_run(run_dir):
    run = read_run(run_dir())
    assert (run.name, run.algorithm, run.done, run.rounds) == ("a-run", "fedhbm", 4, 4)
    assert run.finished
    assert run.last("test_accuracy") == 0.625
    assert run.last("test_loss") == 0.5
    assert run.best == (3, 0.875)
    assert run.mean_accuracy == 0.75  # of rounds 3 and 4
    assert (run.total("wall_s"), run.total("down_bytes"), run.total("up_bytes")) == (6, 40, 80)
    assert run.scores["test_loss"] == ((0, 2.5), (2, 1.25), (3, 0.75), (4, 0.5))


def test_a_run_in_progress_is_read_up_to_its_cut_line(run_dir):
    run = read_run(run_dir(LOG[:3], tail='{"round": 3, "wall_'))
    assert (run.done, run.finished, run.mean_accuracy) == (2, False, None)
    assert "unfinished" in plain([run])


def test_a_number_cut_short_does_not_count(run_dir):
    """Without its line end, 8 may be the beginning of 8000."""
    assert read_run(run_dir(LOG[:1], tail='{"round": 8}')).done == 0


def test_a_run_that_only_just_began(run_dir):
    path = run_dir()
    (path / "log.jsonl").unlink()
    run = read_run(path)
    assert (run.done, run.best, run.last("test_loss")) == (0, None, None)
    assert "| 0/4 unfinished | - | - | - | - | 0 bytes | 0 bytes | 0.0 s |" in to_markdown([run])


def test_the_first_of_equally_good_rounds_is_the_best(run_dir):
    log = [
        {"round": t, "test_accuracy": a, "test_loss": 1.0} for t, a in enumerate([0.1, 0.9, 0.9])
    ]
    assert read_run(run_dir(log)).best == (1, 0.9)


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(JobError, match=r"no job\.yaml here, so this is no run directory"):
        read_run(tmp_path)


@pytest.mark.parametrize("job", ["rounds: 4\n", "rounds: [\n", "7\n", ""])
def test_a_job_that_is_not_resolved(run_dir, job):
    with pytest.raises(StoreError, match="not the resolved job") as caught:
        read_run(run_dir(job=job))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["{not json}", "7", '{"round": "3"}'])
def test_a_damaged_line_is_named(run_dir, line):
    with pytest.raises(StoreError, match=r"log.jsonl:2: "):
        read_run(run_dir(LOG[:1], tail=line + "\n"))


ROW = ["a-run", "fedhbm", "4/4", "62.50", "87.50 @3", "75.00", "0.5"]


def test_tables_agree(run_dir):
    runs = [read_run(run_dir()), read_run(run_dir(LOG[:2], name="b|run"))]
    first, second = to_markdown(runs).splitlines()[2:]
    assert first == "| " + " | ".join([*ROW, "40 bytes", "80 bytes", "6.0 s"]) + " |"
    assert second.startswith(r"| b\|run | fedhbm | 1/4 unfinished | 12.50 |")
    printed = plain(runs)
    assert printed.isascii()
    assert [cell.strip() for cell in printed.splitlines()[4].split("|")[1:-1]][:7] == ROW
    out = io.StringIO()
    Console(file=out, width=1000).print(table(runs))
    assert out.getvalue() == printed


def test_csv_keeps_full_precision_and_plain_units(run_dir):
    log = [{**LOG[0], "test_accuracy": 1 / 3, "up_bytes": 2**40 + 1}]
    (row,) = csv.DictReader(io.StringIO(to_csv([read_run(run_dir(log))])))
    assert float(row["test_accuracy"]) == 1 / 3
    assert row["up_bytes"] == str(2**40 + 1)
    assert row["mean_accuracy"] == ""


def test_a_regression_has_no_accuracy(run_dir):
    log = [{"round": t, "wall_s": 1000.0, "test_loss": 1.0, "up_bytes": 4e9} for t in range(5)]
    row = to_markdown([read_run(run_dir(log))]).splitlines()[2]
    assert row.endswith("| 4/4 | - | - | - | 1 | 0 bytes | 20.0 GB | 1:23:20 |")
