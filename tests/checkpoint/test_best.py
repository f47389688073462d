"""The best model: which it is, that it is never ahead of its run, and how it is exported."""

import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hpcfl.checkpoint.best import Best, BestModel
from hpcfl.errors import StoreError
from hpcfl.runs.manifest import BEST, SERVER, committed
from hpcfl.start.start import resume
from tests.algorithms.play import play, softmax_problem, tree


@pytest.fixture(autouse=True)
def _determinism(determinism):
    pass


@pytest.fixture
def job(tmp_path):
    """Eight rounds whose accuracy goes up and down, every one evaluated and committed."""
    changes = {
        "data": {"kind": "digits", "clients": 9, "partition": {"kind": "dirichlet", "alpha": 0.0}},
        "cohort": {"kind": "uniform", "size": 2},
        "evaluate": {"every": 1, "best": True},
        "rounds": 8,
        "checkpoint": {"every": 1, "keep": 99},
    }
    return tree(tmp_path, softmax_problem(), {"name": "fedavg"}, **changes)


def rounds(offers, path):
    """Which of the offered scores were kept, in turn."""
    best = Best()
    kept = []
    for round, scores in enumerate(offers):
        best.offer(round, scores, torch.full((3,), float(round)))
        if best.model is not None:
            found = BestModel.unpack(b"".join(best.model.pack()), path)
            assert found.x.tolist() == [found.round] * 3
            assert found.score == scores_of(offers[found.round])
            kept.append(found.round)
    return kept


def best_of(run):
    """The file of the best model as of the newest checkpoint of a run directory."""
    return committed(run / "checkpoints")[-1].folder / BEST


def scores_of(scores):
    return scores.get("test_accuracy", scores["test_loss"])


def test_validation_is_what_chooses_where_there_is_any(tmp_path):
    """Round 2 has the best test scores, round 1 the best validation accuracy."""
    best = Best()
    scores = [(0.2, 0.3, 1.0), (0.7, 0.5, 0.9), (0.6, 0.9, 0.1)]
    for round, (validation, test, loss) in enumerate(scores):
        offer = {"test_loss": loss, "test_accuracy": test, "validation_loss": loss}
        best.offer(round, {**offer, "validation_accuracy": validation}, torch.zeros(3))
    found = best.model
    assert (found.round, found.name, found.score) == (1, "validation_accuracy", 0.7)


def test_the_clients_own_models_choose_where_the_run_counts_by_them(tmp_path):
    """Round 1 has the best personal scores, round 2 those of x."""
    best = Best()
    for round, (personal, x) in enumerate([(0.2, 0.3), (0.7, 0.5), (0.6, 0.9)]):
        scores = {"personal_accuracy": personal, "validation_accuracy": x, "test_accuracy": x}
        best.offer(round, scores, torch.zeros(3), personal=True)
    found = best.model
    assert (found.round, found.name, found.score) == (1, "personal_accuracy", 0.7)


def test_scores_of_different_models_are_not_compared(tmp_path):
    """A run of an earlier version is resumed, whose best model was chosen by the test set."""
    before, after = Best(), Best()
    before.offer(1, {"test_accuracy": 0.9}, torch.zeros(3))
    after.restore(b"".join(before.model.pack()), tmp_path)
    after.offer(2, {"personal_accuracy": 0.5, "test_accuracy": 0.9}, torch.ones(3), personal=True)
    assert after.model.round == 2


def test_a_run_keeps_the_model_of_the_round_that_is_best_for_its_clients(tmp_path, job):
    data = {**job["data"], "holdout": 0.25, "validation": {"share": 0.25}}
    asked = {"name": "fedper", "personal": ["1.bias"]}
    run = play(tmp_path, {**job, "data": data, "algorithm": asked})
    scores = [record["personal_validation_accuracy"] for record in run.log]
    found = load_file(best_of(run.directory))
    best = int(np.argmax(scores))
    assert best != int(np.argmax([record["validation_accuracy"] for record in run.log]))
    assert (found["round"], found["personal_validation_accuracy"]) == (best, scores[best])


def test_the_highest_accuracy_the_first_of_equals(tmp_path):
    accuracies = [0.1, 0.5, 0.5, 0.25, 0.75]
    offers = [{"test_loss": 1.0 + k, "test_accuracy": a} for k, a in enumerate(accuracies)]
    assert rounds(offers, tmp_path) == [0, 1, 1, 1, 4]


def test_a_model_whose_loss_is_not_finite_is_never_the_best(tmp_path):
    offers = [{"test_loss": x, "test_accuracy": a} for x, a in ((math.nan, 0.2), (2.3, 0.1))]
    assert rounds(offers[::-1], tmp_path) == [0, 0]
    best = Best()
    best.offer(1, offers[0], torch.zeros(3))
    assert best.model is None


def test_scores_of_no_test_keep_no_model():
    """A test set whose labels are all padding has no scores."""
    best = Best()
    best.offer(1, {"train_objective": 0.5}, torch.zeros(2))
    assert best.model is None


def test_the_lowest_loss_where_nothing_is_classified(tmp_path):
    """A loss that is not a number is never the best, not even the first."""
    losses = [math.nan, 3.0, 2.0, 2.0, math.nan, -1.0]
    assert rounds([{"test_loss": loss} for loss in losses], tmp_path) == [1, 2, 2, 2, 5]


def test_a_run_keeps_the_model_of_its_best_round(tmp_path, job):
    run = play(tmp_path, job)
    accuracies = [record["test_accuracy"] for record in run.log]
    best = int(np.argmax(accuracies))
    assert 0 < best < 8  # else the job shows nothing
    found = load_file(best_of(run.directory))
    assert (found["round"], found["test_accuracy"]) == (best, accuracies[best])
    server = load_file(run.directory / f"checkpoints/{best:08d}" / SERVER)
    assert np.array_equal(found["x"], server["x"])


def test_nothing_is_kept_unless_asked_for(tmp_path, job):
    run = play(tmp_path, {**job, "evaluate": {"every": 1}})
    assert not list(run.directory.rglob(BEST))


def test_the_best_of_a_later_round_does_not_outlive_a_resume(tmp_path, job):
    """Whatever checkpoint it starts from, the run has the best up to there, then the whole's."""
    run = play(tmp_path, job)
    whole = best_of(run.directory).read_bytes()
    accuracies = [record["test_accuracy"] for record in run.log]
    for since in (6, 3, 0):
        for checkpoint in committed(run.directory / "checkpoints"):
            if checkpoint.round > since:
                (checkpoint.folder / "manifest.json").unlink()
        if since:  # round 0 is evaluated after its checkpoint, and found again
            until = int(np.argmax(accuracies[: since + 1]))
            assert load_file(best_of(run.directory))["round"] == until
        resume(run.directory)
        assert best_of(run.directory).read_bytes() == whole


def test_damage_is_told(tmp_path):
    with pytest.raises(StoreError, match=r"b: is not a best model: .*; resume from an older"):
        BestModel.unpack(b"nonsense", tmp_path / "b")


# what the commands say of it


@pytest.fixture
def run(tmp_path, job):
    return play(tmp_path, job)


def test_export(run, tmp_path, hpcfl):
    target, named = tmp_path / "x.npz", tmp_path / "x.safetensors"
    done = hpcfl("export", run.directory, "--best", "-o", target, "--state-dict", named)
    kept = load_file(best_of(run.directory))
    score = f"test_accuracy {kept['test_accuracy']:.4g}"
    said = f"the best model after round {kept['round']}: {score}"
    assert (done.code, done.out, done.err) == (0, [str(target), str(named)], [said])
    with np.load(target) as found:
        assert set(found.files) == {"x", "round", "test_accuracy"}
        for name in found.files:
            assert np.array_equal(found[name], kept[name])
    flat = np.concatenate([value.ravel() for value in load_file(named).values()])
    assert sorted(flat) == sorted(kept["x"])


@pytest.mark.parametrize("more", [["--round", "2"], ["--clients"]])
def test_the_best_is_no_checkpoint(run, tmp_path, refused, more):
    line = refused("export", run.directory, "--best", "-o", tmp_path / "x.npz", *more)
    assert line.endswith("leave out --round, --client and --clients")


def test_a_run_without_a_best_model(tmp_path, job, refused):
    run = play(tmp_path, {**job, "evaluate": {"every": 1}})
    line = refused("export", run.directory, "--best", "-o", tmp_path / "x.npz")
    assert "keeps no best model up to round 8; its job needs evaluate.best: true" in line
