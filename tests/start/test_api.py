"""hpcfl from Python."""

import signal

import pytest
import torch

import hpcfl
from hpcfl.errors import JobError, Stopped
from hpcfl.io.signals import SAVE, STOP

JOB = {
    "data": {"kind": "digits", "clients": 4},
    "model": {"name": "linear"},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedhbm"},
    "local": {"batch_size": 64, "lr": 0.1},
    "rounds": 2,
}


@pytest.fixture(autouse=True)
def own_process():
    before = {number: signal.getsignal(number) for number in (*STOP, SAVE)}
    yield
    after = {number: signal.getsignal(number) for number in (*STOP, SAVE)}
    torch.set_deterministic_debug_mode("default")
    assert after == before  # a library leaves no handlers behind


def test_torch_is_left_as_it_was(tmp_path):
    """A notebook may train models of its own afterwards, with all threads and any operation."""
    read = (
        torch.get_num_threads,
        torch.get_deterministic_debug_mode,
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.mha.get_fastpath_enabled,
    )
    torch.set_num_threads(3)
    torch.set_deterministic_debug_mode("default")
    torch.backends.mha.set_fastpath_enabled(True)
    try:
        before = [get() for get in read]
        hpcfl.run(JOB, out=tmp_path / "run")
        hpcfl.resume(tmp_path / "run", ["rounds=3"])
        hpcfl.check(JOB, load=True)
        assert [get() for get in read] == before
    finally:
        torch.set_num_threads(1)


def test_a_precision_of_torchs_newer_interface_is_no_obstacle(tmp_path):
    """torch raises where such a setting is read by the older interface."""
    before = torch.backends.fp32_precision
    torch.backends.fp32_precision = "tf32"
    try:
        assert hpcfl.run(JOB, out=tmp_path / "run").rounds == 2
    finally:
        torch.backends.fp32_precision = before


def test_a_run_outlives_the_folder_that_it_was_started_in(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    class Removes(hpcfl.Callback):
        def round(self, record, model):
            (tmp_path / "here").rmdir()

    done = hpcfl.run(JOB, {"rounds": 1}, out=tmp_path / "run", callbacks=[Removes()])
    assert done.rounds == 1


def test_run_and_resume_as_often_as_one_likes(tmp_path):
    first = hpcfl.run(JOB, out=tmp_path / "a")
    second = hpcfl.run(JOB, ["local.lr=0.2"], out=tmp_path / "b")
    again = hpcfl.resume(tmp_path / "a")
    third = hpcfl.run(JOB, out=tmp_path / "c")
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.x, third.x)
    assert not torch.equal(first.x, second.x)
    assert [record["round"] for record in third.log] == [1, 2]
    assert "test_accuracy" in third.log[-1]


class Stops(hpcfl.Callback):
    def round(self, record, model):
        signal.raise_signal(signal.SIGTERM)


def test_a_stopped_run_leaves_no_handlers_behind(tmp_path):
    """The process is the caller's, and may go on for long."""
    with pytest.raises(Stopped, match="SIGTERM"):
        hpcfl.run({**JOB, "rounds": 9}, out=tmp_path / "a", callbacks=[Stops()])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert hpcfl.resume(tmp_path / "a").rounds == 9


def test_the_job_is_not_changed(tmp_path):
    before = {key: dict(value) if isinstance(value, dict) else value for key, value in JOB.items()}
    hpcfl.run(JOB, ["rounds=1"], out=tmp_path / "a")
    assert before == JOB


FAULTY = """
from dataclasses import dataclass

from hpcfl.algorithms.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Branches(FedAvg):
    def direction(self, point, local, grad, client):
        g = grad(point)
        return (g if g.norm() > 1 else 2 * g), local
"""


def test_a_faulty_algorithm_is_told_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(JobError, match=r"Branches: its dry round failed in .*meta.*no if of one"):
        hpcfl.run(JOB, ["algorithm={name: faulty.Branches}"], out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_result_outlives_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = hpcfl.run(JOB, ["rounds=1"], out="run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert [entry["round"] for entry in result.log] == [0, 1][-len(result.log) :]
    assert result.log
