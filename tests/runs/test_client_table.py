"""clients.csv: a resume, a copy and a record have each line once; other columns are added."""

import csv
import json
import shutil

import pytest

from hpcfl.io import checksum
from hpcfl.runs.manifest import committed
from tests.parallel.outcome import outcome

pytestmark = pytest.mark.usefixtures("own_process")

TABLE = ("evaluate.clients=table", "evaluate.every=1", "checkpoint.every=2", "checkpoint.keep=5")


@pytest.fixture
def run(job, tmp_path, hpcfl):
    """A run of four rounds, and of four clients."""
    out = tmp_path / "run"
    assert hpcfl("run", job, *TABLE, "--out", out).code == 0
    return out


def rows(run):
    return list(csv.DictReader((run / "clients.csv").read_text().splitlines()))


def test_as_after_a_kill(run, hpcfl):
    """Lines after the checkpoint, the last of them not whole."""
    table, whole = run / "clients.csv", (run / "clients.csv").read_bytes()
    shutil.rmtree(run / "checkpoints/00000004")
    table.write_bytes(whole[:-30])
    assert hpcfl("resume", run).code == 0
    assert table.read_bytes() == whole
    # The number of a line that is cut may look like one of an earlier round.
    shutil.rmtree(run / "checkpoints/00000004")
    kept = whole[: whole.index(b"\n3,") + 1]
    table.write_bytes(kept + b"1")
    assert hpcfl("resume", run).code == 0
    assert table.read_bytes() == whole


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 5000,
        b"\0" * 500 + b"rain,1,10,1.3194246530532836,0.5\n4,global,train,2,10",
        b"1,global,train,2,10,1.5,0.5\n" * 9,  # of another time, as a block that was used before
        bytes(range(256)) * 9,
        b"\n",
    ],
)
def test_a_resume_looks_at_nothing_behind_the_checkpoint(run, hpcfl, tail):
    """As a loss of power leaves the lines that were not on the disk."""
    table, whole = run / "clients.csv", (run / "clients.csv").read_bytes()
    shutil.rmtree(run / "checkpoints/00000004")
    table.write_bytes(whole[: whole.index(b"\n3,") + 1] + tail)
    done = hpcfl("resume", run)
    assert done.code == 0, done.err
    assert table.read_bytes() == whole


def test_a_run_of_an_earlier_version(run, hpcfl):
    """Its manifests name no lines: rounds tell which of them are kept."""
    table, whole = run / "clients.csv", (run / "clients.csv").read_bytes()
    shutil.rmtree(run / "checkpoints/00000004")
    for path in run.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["table_lines"], manifest["crc32"]
        path.write_bytes(checksum.add_to_json(json.dumps(manifest)))
    table.write_bytes(whole + b"\0\n")
    assert hpcfl("resume", run).code == 0
    assert table.read_bytes() == whole
    assert committed(run / "checkpoints")[-1].table_lines == whole.count(b"\n")


def test_new_columns_make_earlier_lines_longer(run, hpcfl, tmp_path, monkeypatch):
    """A checkpoint names the lines, which stay as many."""
    (tmp_path / "other_metrics.py").write_text("def one(outputs, y):\n    return outputs[:, 1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("resume", run, "rounds=6", "evaluate.metrics=[other_metrics.one]")
    assert hpcfl(*words).code == 0
    table, whole = run / "clients.csv", (run / "clients.csv").read_bytes()
    shutil.rmtree(run / "checkpoints/00000006")
    table.write_bytes(whole[:-20] + b"\0" * 20)
    done = hpcfl("resume", run)
    assert done.code == 0, done.err
    assert table.read_bytes() == whole


def test_the_users_own_file_stays(job, tmp_path, hpcfl, refused):
    """Of a run that writes no table."""
    out = tmp_path / "other"
    assert hpcfl("run", job, "--out", out).code == 0
    (out / "clients.csv").write_text("name,phone\n")
    line = refused("resume", out, "rounds=5")
    assert line.startswith(f"StoreError: {out}/clients.csv:1: found b'name,phone")
    assert line.endswith("move it away")
    assert (out / "clients.csv").read_text() == "name,phone\n"


def test_from_the_initial_model(run, hpcfl):
    """Its evaluation follows the checkpoint of round 0."""
    whole = (run / "clients.csv").read_bytes()
    assert hpcfl("resume", run, "--round", "0").code == 0
    assert (run / "clients.csv").read_bytes() == whole


def test_more_rounds_with_other_metrics(run, hpcfl, tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text(
        "def first(outputs, labels):\n    return outputs[:, 0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = rows(run)
    assert hpcfl("resume", run, "rounds=5", "evaluate.metrics=[own_metrics.first]").code == 0
    after = rows(run)
    assert [{**row, "first": ""} for row in before] == after[: len(before)]
    assert [row["round"] for row in after[len(before) :]] == ["5"] * 4
    assert all(float(row["first"]) for row in after[len(before) :])
    assert hpcfl("resume", run, "rounds=6", "evaluate.metrics=[]").code == 0
    assert [row["first"] for row in rows(run)[-4:]] == [""] * 4


def test_copies_and_records(run, hpcfl, tmp_path):
    whole = (run / "clients.csv").read_bytes()
    copy, branch, record = (tmp_path / name for name in ("copy", "branch", "record"))
    assert hpcfl("resume", run, "--round", "2", "--out", copy).code == 0
    assert (copy / "clients.csv").read_bytes() == whole
    assert hpcfl("resume", run, "local.lr=0.5", "--round", "2", "--out", branch).code == 0
    first, second = rows(branch), rows(run)
    assert [row for row in first if int(row["round"]) < 3] == [
        row for row in second if int(row["round"]) < 3
    ]
    assert first[-1]["round"] == second[-1]["round"] == "4"
    assert first[-1] != second[-1]
    assert hpcfl("export", run, "--record", record).code == 0
    assert (record / "clients.csv").read_bytes() == whole


def test_the_training_is_the_same_with_and_without(run, job, hpcfl, tmp_path):
    other = tmp_path / "other"
    assert hpcfl("run", job, "evaluate.clients=true", *TABLE[1:], "--out", other).code == 0
    assert not (other / "clients.csv").exists()
    assert outcome(other) == outcome(run)


def test_what_is_no_table(run, hpcfl, refused):
    table = run / "clients.csv"
    table.write_text("round,model,data,client,loss\nnonsense\n")
    line = refused("resume", run, "rounds=5")
    assert f"{table}:2: found b'nonsense" in line
    assert "or move it away" in line
    table.unlink()
    assert hpcfl("resume", run, "rounds=5").code == 0
    assert {row["round"] for row in rows(run)} == {"5"}
