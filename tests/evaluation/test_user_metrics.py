"""Metrics of the user's own: by hand, on two ranks, and what is wrong with one costs a line."""

import csv
import json
import math
import re
import sys

import numpy as np
import pytest

from tests.forked import finish

METRICS = '''\
import random

import torch

from hpcfl import Metric

CALLS = []


def margin(outputs, labels):
    """The output of the label, less the largest."""
    return outputs.gather(1, labels[:, None])[:, 0] - outputs.amax(1)


class macro_f1(Metric):
    def sums(self, outputs, labels):
        classes = outputs.shape[1]
        found, true = (torch.nn.functional.one_hot(y, classes) for y in (outputs.argmax(1), labels))
        return torch.stack([found * true, found, true]).sum(1).flatten()

    def score(self, sums):
        both, found, true = sums.view(3, -1)
        return (2 * both / (found + true)).nanmean()


def sums_of_batch(outputs, labels):
    return labels.sum()


def short(outputs, labels):
    return outputs[:-1, 0]


def numpy_array(outputs, labels):
    return outputs[:, 0].numpy()


def in_place(outputs, labels):
    return outputs.exp_()[:, 0]


def draws(outputs, labels):
    return outputs[:, 0] * random.random()


def keeps(outputs, labels):
    CALLS.append(1)
    return outputs[:, 0] + len(CALLS)


def raises(outputs, labels):
    return outputs[:, 1000]


def unbounded(outputs, labels):
    return outputs[:, 0] / 0


def fails_late(outputs, labels):
    CALLS.append(1)
    if len(CALLS) > 4:
        raise ZeroDivisionError("late")
    return outputs[:, 0]


class Abstract(Metric):
    def sums(self, outputs, labels):
        return outputs.sum(0)


class Asks(Metric):
    def __init__(self, threshold):
        self.threshold = threshold

    def sums(self, outputs, labels):
        return outputs.sum(0)

    def score(self, sums):
        return self.threshold


class Collects(Metric):
    """Scores what it has seen, on one rank, and not the sums of all."""

    def __init__(self):
        self.right, self.seen = 0, 0

    def sums(self, outputs, labels):
        self.right += int((outputs.argmax(1) == labels).sum())
        self.seen += len(labels)
        return torch.zeros(1)

    def score(self, sums):
        return self.right / max(self.seen, 1) + self.seen


class Text(Metric):
    def sums(self, outputs, labels):
        return outputs.sum(0)

    def score(self, sums):
        return "good"


class PerBatch(Metric):
    def sums(self, outputs, labels):
        return torch.ones(3 if len(labels) == 7 else 2)

    def score(self, sums):
        return float(sums.sum())


class Counts(PerBatch):
    def sums(self, outputs, labels):
        return torch.ones(1 + len(labels) // 5)


class Plain:
    pass


class confusion(Metric):
    """[true, predicted], as a tensor of two dimensions."""

    def sums(self, outputs, labels):
        classes = outputs.shape[1]
        return torch.bincount(labels * classes + outputs.argmax(1), minlength=classes**2)

    def score(self, sums):
        return sums.view(4, 4)


class Varies(Metric):
    """A score of as many numbers as there are examples."""

    def sums(self, outputs, labels):
        return torch.tensor([len(labels)])

    def score(self, sums):
        return torch.zeros(int(sums[0]))


def accuracy(outputs, labels):
    return outputs[:, 0]
'''
OWN = "evaluate.metrics=[scores.margin, scores.macro_f1]"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "scores.py").write_text(METRICS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scores", raising=False)
    yield tmp_path / "scores.py"
    sys.modules.pop("scores", None)


def log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def outputs(run):
    """Logits of the examples of the fixture ``arrays``, at the final model."""
    import hpcfl

    net = hpcfl.load_model(run)
    import torch

    with torch.no_grad():
        return lambda x: net(torch.from_numpy(np.asarray(x, dtype=np.float32))).detach().numpy()


def margins(z, y):
    return z[np.arange(len(y)), y] - z.max(1)


def macro_f1(z, y):
    found = z.argmax(1)
    scores = [
        2 * np.sum((found == c) & (y == c)) / (np.sum(found == c) + np.sum(y == c))
        for c in range(z.shape[1])
        if np.any(found == c) or np.any(y == c)
    ]
    return np.mean(scores)


def test_by_hand(job, hpcfl, tmp_path, arrays):
    settings = (OWN, "evaluate.clients=true", "evaluate.batch_size=5", "data.holdout=0.4")
    run = tmp_path / "run"
    assert hpcfl("run", job, *settings, "--out", run).code == 0
    data, of = np.load(arrays()), outputs(run)
    z, y = of(data["x_test"]), data["y_test"]
    last = log(run)[-1]
    assert last["test_margin"] == pytest.approx(margins(z, y).mean(), abs=1e-6)
    assert last["test_macro_f1"] == pytest.approx(macro_f1(z, y), abs=1e-12)
    assert {key for key in last if "margin" in key} == {
        "test_margin",
        *(f"client_margin_{part}" for part in ("mean", "std", "lowest_decile", "highest_decile")),
    }
    lowest, mean, highest = (
        last[f"client_macro_f1_{part}"] for part in ("lowest_decile", "mean", "highest_decile")
    )
    assert lowest < mean < highest


def test_each_client_by_hand(job, hpcfl, tmp_path, arrays):
    """Without held-out examples: the training examples of each client, dealt by a file."""
    run, owners = tmp_path / "run", tmp_path / "owners.npy"
    rows = [list(range(k, 40, 4)) for k in range(4)]
    rows[0], rows[1] = rows[0][:3], rows[1] + rows[0][3:]
    of_row = np.zeros(40, dtype=np.int64)
    for client, part in enumerate(rows):
        of_row[part] = client
    np.save(owners, of_row)
    deal = f"data.partition={{kind: file, path: {owners}}}"
    asked = ("evaluate.clients=true", "evaluate.batch_size=3")
    assert hpcfl("run", job, deal, OWN, *asked, "--out", run).code == 0
    data, of = np.load(arrays()), outputs(run)
    last = log(run)[-1]
    for name, by_hand in (("margin", lambda z, y: margins(z, y).mean()), ("macro_f1", macro_f1)):
        own = sorted(by_hand(of(data["x"][part]), data["y"][part]) for part in rows)
        found = [
            last[f"client_{name}_{part}"] for part in ("lowest_decile", "mean", "highest_decile")
        ]
        assert found == pytest.approx([own[0], np.mean(own), own[-1]], abs=1e-6)
        assert last[f"client_{name}_std"] == pytest.approx(np.std(own), abs=1e-6)
        assert own[0] < own[-1]


def test_several_numbers_are_in_the_table_of_clients(job, hpcfl, tmp_path, module, arrays):
    """A line for each client and for the test set; the log has only single numbers."""
    metrics = "evaluate.metrics=[scores.confusion, scores.margin]"
    settings = (job, metrics, "evaluate.clients=table", "evaluate.batch_size=5")
    run, two = tmp_path / "run", tmp_path / "two"
    assert hpcfl("run", *settings, "--out", run).code == 0
    assert not [key for key in log(run)[-1] if "confusion" in key]
    rows = list(csv.DictReader((run / "clients.csv").read_text().splitlines()))
    last = [row for row in rows if row["round"] == "4"]
    assert [(row["data"], row["client"]) for row in last] == [
        ("test", "-1"), *(("train", str(k)) for k in range(4)),
    ]  # fmt: skip
    data, of = np.load(arrays()), outputs(run)
    by_hand = np.zeros((4, 4))
    np.add.at(by_hand, (data["y_test"], of(data["x_test"]).argmax(1)), 1)
    assert [float(last[0][f"confusion.{k}"]) for k in range(16)] == by_hand.flatten().tolist()
    assert float(last[0]["margin"]) == log(run)[-1]["test_margin"]
    env = {"PYTHONPATH": str(module.parent)}
    done = finish(2, "run", *settings, "--out", two, env=env)
    assert done.returncode == 0, done.stderr
    assert (two / "clients.csv").read_bytes() == (run / "clients.csv").read_bytes()


def test_several_numbers_need_the_table(job, refused, tmp_path):
    metrics = "evaluate.metrics=[scores.confusion]"
    line = refused("run", job, metrics, "--out", tmp_path / "run")
    assert "its score has 16 numbers, and the log holds one; set evaluate.clients to table" in line


def test_scores_with_other_numbers(job, hpcfl, tmp_path):
    settings = ("evaluate.metrics=[scores.Varies]", "evaluate.clients=table")
    done = hpcfl("run", job, *settings, "--out", tmp_path / "run")
    assert done.code == 1
    (line,) = [line for line in done.err if "Error" in line]
    assert "Varies has a score of 10 numbers, and one of " in line


def test_scores_that_are_not_finite_are_null(job, hpcfl, tmp_path):
    """The sums of a client's batches are +inf and -inf."""
    run, settings = tmp_path / "run", ("evaluate.clients=true", "evaluate.batch_size=1")
    metric = "evaluate.metrics=[scores.unbounded]"
    assert hpcfl("run", job, metric, *settings, "--out", run).code == 0
    assert log(run)[-1]["test_unbounded"] is None


def test_two_ranks_and_a_resume_give_the_same_bits(job, hpcfl, tmp_path, module):
    """On three batches, of two ranks; and with fewer batches than ranks."""
    keys = ("evaluate.clients=true", "evaluate.local_models=true", "data.validation.share=0.2")
    for size in (5, 500):
        one, two = tmp_path / f"one{size}", tmp_path / f"two{size}"
        settings = (job, OWN, f"evaluate.batch_size={size}", *keys)
        assert hpcfl("run", *settings, "--out", one).code == 0
        env = {"PYTHONPATH": str(module.parent)}
        done = finish(2, "run", *settings, "rounds=3", "--out", two, env=env)
        assert done.returncode == 0, done.stderr
        assert hpcfl("resume", two, "rounds=4").code == 0
        scores = {key for key in log(one)[-1] if "margin" in key or "f1" in key}
        assert len(scores) == 2 * (2 + 4 + 4)
        assert [log(one)[-1][key] for key in scores] == [log(two)[-1][key] for key in scores]


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_with_different_numbers_of_sums(job, tmp_path, module, ranks):
    """Of two ranks each has one batch, so that neither sees both numbers alone."""
    settings = ("evaluate.metrics=[scores.PerBatch]", "evaluate.batch_size=7", "data.holdout=null")
    env = {"PYTHONPATH": str(module.parent)}
    run = tmp_path / "run"
    done = finish(ranks, "run", job, *settings, "--out", run, env=env)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "Error" in line]
    assert re.search(r"HookError: round \d in sums \(.*: PerBatch returns \d sums of a b", line)
    assert "Traceback" not in done.stderr


def test_the_training_is_the_same_with_and_without(job, hpcfl, tmp_path):
    for name, setting in (("with", [OWN]), ("without", [])):
        assert hpcfl("run", job, *setting, "--out", tmp_path / name).code == 0
    servers = [
        next((tmp_path / name / "checkpoints").glob("*4/server.safetensors")).read_bytes()
        for name in ("with", "without")
    ]
    assert servers[0] == servers[1]


def test_they_are_shown(job, hpcfl, tmp_path):
    run = tmp_path / "run"
    assert hpcfl("run", job, OWN, "--out", run).code == 0
    last = log(run)[-1]["test_macro_f1"]
    lines = hpcfl("status", run).out
    assert any(line.split()[:2] == ["test_macro_f1", f"{last:.4g}"] for line in lines)
    table = hpcfl("report", run).text
    assert f"{last:.4g}" in table
    (row,) = csv.DictReader(hpcfl("report", run, "--format", "csv").out)
    assert math.isclose(float(row["test_macro_f1"]), last)
    assert "test_margin" in row


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sums_of_batch", "sums_of_batch returns a tensor [] of int64; expected a tensor [8], a n"),
        ("short", "short returns a tensor [7] of float32; expected a tensor [8]"),
        ("numpy_array", "returns array("),
        ("in_place", "in_place changes its outputs or labels in place; make a new tensor"),
        ("draws", "draws in draws (...) from Python's random; let it draw nothing"),
        ("keeps", "gives other numbers in keeps (...) when the same batch is run again"),
        ("Collects", "gives other numbers in sums (...)"),
        ("raises", "in raises (...): IndexError: index 1000 is out of bounds"),
        ("Text", "Text.score returns 'good'; expected a number"),
        ("Counts", "on the first 4 examples of the batch failed in sums (...): Counts "),
    ],
)
def test_a_trial_before_round_1(job, refused, tmp_path, name, said):
    line = refused("run", job, f"evaluate.metrics=[scores.{name}]", "--out", tmp_path / "run")
    assert line.startswith(f"JobError: evaluate.metrics: scores.{name}: ")
    assert said in re.sub(rf"{tmp_path}/scores.py:\d+", "...", line)
    assert f"{tmp_path}/scores.py:" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scores.Asks", "cannot be made without arguments in __init__ ("),
        ("scores.Abstract", "scores.Abstract cannot be used, it does not define score"),
        ("scores.Plain", "labels of your own, or a class derived from hpcfl.Metric"),
        ("scores.CALLS", "scores.CALLS is [], expected a function"),
        ("scores.absent", "cannot be imported: AttributeError"),
        ("absent.margin", "cannot be imported: ModuleNotFoundError"),
        ("margin", "found 'margin', expected a dotted path"),
        ("__main__.margin", "put it into a module"),
        ("scores.accuracy", "but accuracy is a score of hpcfl; rename it"),
    ],
)
def test_a_name_that_is_no_metric(job, refused, name, said):
    line = refused("check", job, f"evaluate.metrics=[{name}]")
    assert ": evaluate" in line
    assert said in line


def test_an_error_in_a_later_round(job, hpcfl, tmp_path):
    """One line with the round and the place; the checkpoint before it stands."""
    run = tmp_path / "run"
    settings = ("checkpoint.every=1", "evaluate.metrics=[scores.fails_late]")
    done = hpcfl("run", job, *settings, "--out", run)
    assert done.code == 1
    (line,) = [line for line in done.err if "Error" in line]
    number = METRICS.splitlines().index('        raise ZeroDivisionError("late")') + 1
    where = f"{tmp_path}/scores.py:{number}"
    assert f"round 2 in fails_late ({where}): ZeroDivisionError: late" in line
    assert hpcfl("resume", run, "evaluate.metrics=[]").code == 0
