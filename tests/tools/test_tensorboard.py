"""What TensorBoard reads of a run."""

import json
import os

import pytest

from hpcfl.engine.callbacks import RunStart
from hpcfl.runs.log import RunLog
from hpcfl.tools.callbacks.tensorboard import TensorBoard

pytest.importorskip("tensorboard", reason="events need the package tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SHOWN = "callbacks=[tensorboard]"


def read(run):
    """Every curve as TensorBoard shows it: what later starts took back is forgotten."""
    found = EventAccumulator(str(run / "events"), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}


def from_log(run, key):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [(line["round"], pytest.approx(line[key], rel=1e-6)) for line in lines if key in line]


def fill(descriptor):
    """From now on the disk is full for an open file."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    os.close(full)


def pairs(scalars):
    return [(scalar.step, scalar.value) for scalar in scalars]


def test_the_events_are_the_log(job, hpcfl, tmp_path):
    assert hpcfl("run", job, SHOWN, "--out", tmp_path / "run").code == 0
    found = read(tmp_path / "run")
    for tag, key in (
        ("score/train_loss", "train_loss"),
        ("score/test_accuracy", "test_accuracy"),
        ("time/compute_s", "compute_s"),
        ("round/clients_per_s", "clients_per_s"),
    ):
        assert pairs(found[tag]) == from_log(tmp_path / "run", key) != []


def test_rounds_that_a_resume_takes_back_are_forgotten(job, hpcfl, tmp_path):
    run = tmp_path / "run"
    assert hpcfl("run", job, SHOWN, "--out", run).code == 0
    assert hpcfl("resume", run, "--round", "2").code == 0
    assert len(list((run / "events").iterdir())) == 2
    assert pairs(read(run)["score/train_loss"]) == from_log(run, "train_loss")
    assert [step for step, _ in pairs(read(run)["score/train_loss"])] == [1, 2, 3, 4]


def test_a_start_writes_all_rounds_of_the_log(job, hpcfl, tmp_path):
    """Also of a run that had no events before, and of one that is finished."""
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    assert not (run / "events").exists()
    assert hpcfl("resume", run, "--round", "2", SHOWN, "rounds=5").code == 0
    assert pairs(read(run)["score/train_loss"]) == from_log(run, "train_loss")
    assert [step for step, _ in pairs(read(run)["score/train_loss"])] == [1, 2, 3, 4, 5]
    assert hpcfl("resume", run).code == 0
    assert pairs(read(run)["score/train_loss"]) == from_log(run, "train_loss")


def test_without_the_package(job, refused, tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfl.io.packages.find_spec", lambda name: None)
    line = refused("run", job, SHOWN, "--out", tmp_path / "run")
    assert "callbacks.0: found tensorboard, but no package tensorboard; say `pip inst" in line
    assert not (tmp_path / "run").exists()


def test_a_line_cut_short_hides_nothing_before_it(tmp_path):
    """As kill -9 leaves a file."""
    (tmp_path / "log.jsonl").touch()
    written = TensorBoard()
    written.start(RunStart(tmp_path, {}, 0, 3, 1))
    for t in range(3):
        written.round({"round": t, "train_loss": 0.5})
    written.end("finished")
    (file,) = (tmp_path / "events").iterdir()
    os.truncate(file, file.stat().st_size - 5)
    assert pairs(read(tmp_path)["score/train_loss"]) == [(0, 0.5), (1, 0.5)]


def test_the_first_failure_is_told_where_the_events_fail_too(job, hpcfl, tmp_path, monkeypatch):
    """The disk is full for both files; what ended the rounds is the log's line."""
    write, start = RunLog.write, TensorBoard.start

    def full_log(log, record):
        if record["round"] == 2:
            fill(log._file.fileno())
        write(log, record)

    def full_events(self, run):
        start(self, run)
        fill(self._file.fileno())

    monkeypatch.setattr(RunLog, "write", full_log)
    monkeypatch.setattr(TensorBoard, "start", full_events)
    done = hpcfl("run", job, SHOWN, "checkpoint.every=100", "--out", tmp_path / "run")
    assert done.code == 74
    (line,) = [line for line in done.err if "Error" in line]
    assert f"{tmp_path}/run/log.jsonl: cannot be written: No space left on device" in line


def test_a_disk_that_is_full(job, hpcfl, tmp_path, monkeypatch):
    """One line, as where log.jsonl cannot be written."""
    start = TensorBoard.start

    def full(self, run):
        start(self, run)
        fill(self._file.fileno())

    monkeypatch.setattr(TensorBoard, "start", full)
    done = hpcfl("run", job, SHOWN, "--out", tmp_path / "run")
    assert done.code == 74
    (line,) = [line for line in done.err if "Error" in line]
    assert f"{tmp_path}/run/events/events.out.tfevents." in line
    assert "cannot be written: No space left on device" in line
