"""The first rounds of a job are run as any start runs them, and nothing of them is kept."""

import errno
import os
import signal

import pytest

from hpcfl.engine.callbacks import Callback
from hpcfl.errors import JobError
from hpcfl.io import memory
from hpcfl.job.load import load
from hpcfl.start import short_run
from hpcfl.start.short_run import EndEarly, run_shortly
from hpcfl.start.start import serve

UNCOUNTED = 1 << 22  # bytes; Linux adds up the pages of a process' threads now and then
LONG = ["rounds=50", "checkpoint.every=50"]


class Forbidden(Callback):
    def start(self, run):
        raise AssertionError("a callback of the job was called")


class Interrupting(EndEarly):
    def round(self, record, model):
        os.kill(os.getpid(), signal.SIGTERM)
        return False


@pytest.fixture
def served(monkeypatch):
    """The folders of the runs."""
    folders = []

    def serving(request, comm):
        folders.append(request.folder.root)
        return serve(request, comm)

    monkeypatch.setattr(short_run, "serve", serving)
    return folders


def test_the_first_rounds_are_run_and_nothing_is_kept(job, tmp_path, served):
    before = sorted(tmp_path.rglob("*"))
    loaded = load(
        job, [*LONG, f"callbacks=[{__name__}.Forbidden]", "stop={metric: test_loss, target: 9}"]
    )
    found = run_shortly(loaded, tmp_path / "runs" / "mine", 3, 0.0)
    assert sorted(tmp_path.rglob("*")) == before
    # Beside the run directory, on its file system.
    assert [(root.name, root.parent.parent) for root in served] == [("mine", tmp_path)]
    assert [line["round"] for line in found.log] == [0, 1, 2, 3, 4]
    assert ["test_loss" in line for line in found.log] == [True, False, False, True, False]
    (peak,) = found.memory
    assert peak >= max(line["memory_bytes"] for line in found.log[1:]) - UNCOUNTED
    assert not found.gpus


def test_rounds_are_run_for_some_seconds(job, tmp_path, monkeypatch):
    """Of a second each, while the clock is looked at."""
    clock = iter(range(100))
    monkeypatch.setattr(short_run, "monotonic", lambda: float(next(clock)) + 1)
    end = EndEarly(3, 5.0)
    ends = [end.round({"round": t, "clients": 2 * (t != 2)}, None) for t in range(1, 12)]
    # The clock is looked at in round 1, and after each round from the fifth on.
    assert ends.index(True) == 4 + 4


def test_a_signal_leaves_nothing(job, tmp_path, monkeypatch):
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(short_run, "EndEarly", Interrupting)
    with pytest.raises(JobError, match="a signal ended the rounds; nothing of them is kept"):
        run_shortly(load(job, LONG), tmp_path / "mine", 3, 0.0)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_one_line(job, tmp_path, monkeypatch):
    def fail(**places):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(short_run, "mkdtemp", fail)
    said = "no folder can be made there to measure in: Read-only file system; plan in another"
    with pytest.raises(JobError, match=said):
        run_shortly(load(job, LONG), tmp_path / "mine", 3, 0.0)


def test_memory_that_the_system_does_not_tell(tmp_path, monkeypatch):
    assert memory.peak_memory() >= memory.resident_memory() - UNCOUNTED > 0
    monkeypatch.setattr(memory, "PROC", tmp_path / "nothing")
    assert memory.peak_memory() == 0
