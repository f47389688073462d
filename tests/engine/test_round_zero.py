"""The pass over all clients before round 1: its line of the log, errors, signals, resumes."""

import os
import signal

import pytest
import torch

from hpcfl.engine import round_zero as engine
from hpcfl.errors import ClientError, DivergedError, Stopped
from hpcfl.job.load import load
from hpcfl.local.sequential import Sequential
from hpcfl.runs.manifest import committed
from hpcfl.start.start import resume, start
from tests.algorithms.play import parts, play, softmax_problem, states, tree

pytestmark = pytest.mark.usefixtures("own_process")

PROBLEM = softmax_problem()  # six clients
ALGORITHM = {"name": "scaffold", "first": "gradient"}
# Groups of two; client 4 never takes part.
COHORT = {"kind": "replay", "rounds": [[0, 1], [], [2, 3, 5], [0, 2, 3]]}


def job(folder, **changes):
    return tree(folder, PROBLEM, ALGORITHM, cohort=COHORT, rounds=4, **changes)


@pytest.fixture
def groups(monkeypatch):
    """The clients of every group, as they are taken; what to do after so many of them."""
    taken, after = [], {}
    mean = engine.plain_mean

    def watched(run, gradients, clients, size, round, values):
        taken.append(list(clients))
        after.get(len(taken), lambda: None)()
        return mean(run, gradients, clients, size, round, values)

    monkeypatch.setattr(engine, "plain_mean", watched)
    return taken, after


@pytest.mark.parametrize("cache", [0.0, 1.0])
@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_every_client_has_a_state_and_round_0_a_line(tmp_path, groups, cache, executor):
    result = play(tmp_path, job(tmp_path, store={"cache_gib": cache}, executor=executor))
    assert groups[0] == [[0, 1], [2, 3], [4, 5]]
    assert [record["round"] for record in result.log] == [0, 1, 2, 3, 4]
    first = result.log[0]
    assert (first["down_bytes"], first["up_bytes"]) == (6 * 8 * 15, 6 * 8 * 15)
    assert first["compute_s"] > 0
    assert first["store_s"] > 0
    assert all(states(result.directory, parts(tmp_path, job(tmp_path))))


def test_the_initial_model_is_evaluated_after_it(tmp_path):
    digits = {"data": {"kind": "digits", "clients": 6}, "evaluate": {"every": 4}}
    first, *_ = play(tmp_path, job(tmp_path, **digits)).log
    assert {"down_bytes", "test_accuracy", "evaluate_s"} <= first.keys()


def test_a_signal_stops_it_after_a_group_and_a_resume_begins_it_again(tmp_path, groups):
    taken, after = groups
    whole = play(tmp_path, job(tmp_path))
    lines = [{k: v for k, v in r.items() if not k.endswith("_s")} for r in whole.log]
    taken.clear()
    after[2] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped, match="SIGTERM after round 0 of 4, with a checkpoint"):
        play(tmp_path, job(tmp_path))
    assert taken == [[0, 1], [2, 3]]
    run = tmp_path / "run1"
    assert [c.round for c in committed(run / "checkpoints")] == [0]
    after.clear()
    taken.clear()
    again = resume(run)
    assert len(taken) == 3
    assert torch.equal(again.x, whole.x)
    found = [{k: v for k, v in r.items() if not k.endswith("_s")} for r in again.log]
    assert [r["up_bytes"] for r in found] == [r["up_bytes"] for r in lines]
    for one, other in zip(
        states(run, parts(tmp_path, job(tmp_path))),
        states(whole.directory, parts(tmp_path, job(tmp_path))),
        strict=True,
    ):
        assert torch.equal(one.c, other.c)


def test_a_resume_does_not_repeat_it(tmp_path, groups):
    taken, _ = groups
    kept = {"checkpoint": {"every": 1, "keep": 9}}
    whole = play(tmp_path, job(tmp_path, **kept))
    for checkpoint in committed(whole.directory / "checkpoints"):
        if checkpoint.round > 1:
            (checkpoint.folder / "manifest.json").unlink()
    taken.clear()
    again = resume(whole.directory)
    assert taken == []
    assert torch.equal(again.x, whole.x)
    assert [record["round"] for record in again.log] == [0, 1, 2, 3, 4]


def test_a_gradient_that_is_not_finite_is_named(tmp_path, monkeypatch):
    full_gradients = Sequential.full_gradients

    def spoiled(self, points, tasks):
        tasks = list(tasks)
        found = full_gradients(self, points, tasks)
        for task, (own,) in zip(tasks, found, strict=True):
            if task.client_id == 3:
                own[0] = torch.nan
        return found

    monkeypatch.setattr(Sequential, "full_gradients", spoiled)
    with pytest.raises(DivergedError, match="client 3 on rank 0, round 0: its upload 'grad'"):
        play(tmp_path, job(tmp_path))


def test_an_error_of_a_client_names_it(tmp_path, monkeypatch):
    def broken(self, points, batches):
        raise RuntimeError("no")

    loaded = load(job(tmp_path))
    monkeypatch.setattr("hpcfl.start.prepare.check_components", lambda components, *, resumed: ())
    monkeypatch.setattr("hpcfl.local.gradient.Gradient.full", broken)
    with pytest.raises(ClientError, match="client 0, round 0, full gradient"):
        start(loaded, tmp_path / "run")
