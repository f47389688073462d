"""Labels of any shape, from the data to the log: tokens with and without padding, targets, bits."""

import json
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import hpcfl
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.sources.arrays import to_indices
from hpcfl.errors import HpcflError, JobError
from hpcfl.runs.score_names import PERPLEXITIES
from hpcfl.types import Examples

WORDS, LENGTH, LABELS = 7, 4, 3
DRAW = np.random.default_rng(0)
X = DRAW.integers(0, WORDS, (24, LENGTH))
NEXT = np.roll(X, -1, 1)
Z = DRAW.standard_normal((24, 5))
BITS = DRAW.random((24, LABELS)) < 0.4
TARGETS = DRAW.standard_normal((24, 2, 3))
JOB = {
    "data": {"clients": 3},
    "cohort": {"kind": "uniform", "size": 3},
    "algorithm": {"name": "fedavg"},
    "local": {"steps": 3, "batch_size": 5, "lr": 0.5},
    "rounds": 2,
    "precision": "float64",
    "evaluate": {"every": 1},
}
ONE_STEP = {
    "data": {"clients": 1, "partition": {"kind": "pooled"}},
    "cohort": {"kind": "uniform", "size": 1},
    "local": {"steps": 1, "batch_size": "full", "lr": 1.0},
    "rounds": 1,
}


def padded(number, last=2):
    """The labels, of which the last ones of every third row are padding."""
    y = NEXT.copy()
    y[::3, -last:] = number
    return y


class Tagger(nn.Module):
    """Logits of every class for each place, [B, T, classes]."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)

    def forward(self, words):
        return self.out(self.table(words))


class WithLogits(Tagger):
    """The same in an object, as a model of transformers returns it."""

    def forward(self, words):
        return SimpleNamespace(logits=super().forward(words), hidden=None)


class Targets(nn.Module):
    """As many numbers as the data has targets or bits."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.out = nn.Linear(input_shape[0], outputs)

    def forward(self, x):
        return self.out(x)


def texts(y, padding=None, **more):
    """Sixteen texts to train on and eight to test on."""
    parts = (X[:16], y[:16]), (X[16:], y[16:])
    return hpcfl.Data(*parts, integers=True, padding=padding, classes=WORDS, **more)


def table(y, **more):
    return hpcfl.Data((Z[:16], y[:16]), (Z[16:], y[16:]), **more)


def run(tmp_path, data, model, name="run", /, **changes):
    return hpcfl.run({**JOB, **changes}, model=model, data=data, out=tmp_path / name)


def mean_loss(model, y, padding):
    """By torch, of a text's places that are no padding."""
    logits = model(torch.from_numpy(X[: len(y)])).flatten(0, 1)
    return functional.cross_entropy(logits, torch.from_numpy(y).flatten(), ignore_index=padding)


@pytest.mark.parametrize("padding", [-100, 0, WORDS, 255])
def test_padding_is_what_torch_ignores(padding, tmp_path):
    y = padded(padding)
    model = Tagger().double()
    done = run(tmp_path, texts(y, padding), model, **ONE_STEP)
    loss = mean_loss(model, y[:16], padding)
    assert done.log[-1]["train_loss"] == pytest.approx(loss.item(), rel=1e-12)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    for found, before, grad in zip(
        done.model().parameters(), model.parameters(), grads, strict=True
    ):
        torch.testing.assert_close(found, before - grad, rtol=0, atol=1e-14)
    tests = torch.from_numpy(X[16:])
    logits, labels = done.model().double()(tests).flatten(0, 1), torch.from_numpy(y[16:]).flatten()
    kept = labels != padding
    last = done.log[-1]
    expected = functional.cross_entropy(logits[kept], labels[kept]).item()
    assert last["test_loss"] == pytest.approx(expected, rel=1e-12)
    assert last["test_perplexity"] == pytest.approx(math.exp(expected), rel=1e-12)
    hits = (logits[kept].argmax(1) == labels[kept]).double().mean().item()
    assert last["test_accuracy"] == pytest.approx(hits, rel=1e-12)


def test_without_padding_every_label_counts(tmp_path):
    """Labels of class 0, too; and the loss is not that with them left out."""
    y, model = padded(0), Tagger().double()
    counted = run(tmp_path, texts(y), model, "counted", **ONE_STEP).log[-1]
    left_out = run(tmp_path, texts(y, 0), model, "left_out", **ONE_STEP).log[-1]
    logits = model(torch.from_numpy(X[:16])).flatten(0, 1)
    loss = functional.cross_entropy(logits, torch.from_numpy(y[:16]).flatten())
    assert counted["train_loss"] == pytest.approx(loss.item(), rel=1e-12)
    assert left_out["train_loss"] != pytest.approx(loss.item(), rel=1e-3)


def test_the_scores_of_all_batches_are_one_mean(tmp_path):
    """Batches of unlike numbers of labels; the exponential is of the total mean."""
    data, model = texts(padded(-100, 4), -100), Tagger()
    evaluate = {"every": 1, "clients": True, "train": True, "batch_size": 3}
    small = run(tmp_path, data, model, "small", evaluate=evaluate).log[-1]
    whole = run(tmp_path, data, model, "whole", evaluate={**evaluate, "batch_size": 99}).log[-1]
    for key in ("test_loss", "test_perplexity", "train_objective", "client_accuracy_mean"):
        assert small[key] == pytest.approx(whole[key], rel=1e-12)
    assert small["test_perplexity"] == math.exp(small["test_loss"])


def test_bits_by_hand(tmp_path):
    y = BITS
    done = run(tmp_path, table(y), Targets, **ONE_STEP)
    model = done.model().double()
    with torch.no_grad():
        logits = model(torch.from_numpy(Z[16:]))
    labels = torch.from_numpy(y[16:])
    loss = functional.binary_cross_entropy_with_logits(logits, labels.double(), reduction="sum")
    last = done.log[-1]
    assert last["test_loss"] == pytest.approx(loss.item() / 8, rel=1e-12)
    said = (logits > 0).numpy()
    assert last["test_accuracy"] == (said == y[16:]).mean()
    f1 = []
    for told, true in zip(said.T, y[16:].T, strict=True):
        hits = (told & true).sum()
        f1.append(2 * hits / max(told.sum() + true.sum(), 1))
    assert last["test_f1"] == pytest.approx(np.mean(f1), rel=1e-12)
    assert "test_perplexity" not in last
    assert "test_top5_accuracy" not in last


def test_f1_of_each_label(tmp_path):
    evaluate = {"clients": "table", "metrics": ["hpcfl.evaluation.f1.F1ByLabel"]}
    done = run(tmp_path, table(BITS), Targets, evaluate=evaluate)
    lines = (tmp_path / "run/clients.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    (whole,) = [row for row in rows if row["client"] == "-1"]
    each = [float(whole[f"F1ByLabel.{k}"]) for k in range(LABELS)]
    assert np.mean(each) == pytest.approx(done.log[-1]["test_f1"], rel=1e-12)
    assert {"f1", "accuracy", "F1ByLabel.2"} < {*lines[0].split(",")}


def test_f1_of_a_label_that_nobody_has_is_zero_and_of_other_labels_refused(tmp_path):
    y = BITS.copy()
    y[:, 1] = False
    model = Targets((5,), LABELS)
    with torch.no_grad():
        model.out.bias[1] = -100.0
    last = run(tmp_path, table(y), model, local={"steps": 1, "lr": 0.0001}).log[-1]
    assert 0 < last["test_f1"] <= 2 / 3
    evaluate = {"metrics": ["hpcfl.evaluation.f1.F1ByLabel"], "clients": "table"}
    with pytest.raises(JobError, match=r"F1ByLabel: .*labels are torch.int64, expected bits"):
        run(tmp_path, texts(NEXT), Tagger, "other", evaluate=evaluate)


def test_targets_of_any_shape(tmp_path):
    model = Targets((5,), 6).double()
    done = run(tmp_path, table(TARGETS), model, **ONE_STEP)
    residuals = model(torch.from_numpy(Z[:16])).view(16, 2, 3) - torch.from_numpy(TARGETS[:16])
    expected = residuals.square().sum() / 32
    assert done.log[-1]["train_loss"] == pytest.approx(expected.item(), rel=1e-12)
    assert "test_accuracy" not in done.log[-1]


CASES = {
    "tokens": (lambda: texts(NEXT), Tagger),
    "padding": (lambda: texts(padded(-100), -100), Tagger),
    "bits": (lambda: table(BITS), Targets),
    "targets": (lambda: table(TARGETS), Targets),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_train_as_one_client_at_a_time(case, tmp_path):
    data, model = CASES[case]
    logs = [
        run(tmp_path, data(), model, executor, executor=executor).log[-1]
        for executor in ("sequential", "block")
    ]
    for key in ("train_loss", "test_loss"):
        assert logs[0][key] == pytest.approx(logs[1][key], rel=1e-12)


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_logits_in_an_object_are_the_outputs(executor, tmp_path):
    data, found = texts(padded(-100), -100), []
    for model in (Tagger, WithLogits):
        algorithm = {"name": "scaffold"}
        name = f"{model.__name__}"
        run(tmp_path, data, model, name, executor=executor, algorithm=algorithm)
        (server,) = (tmp_path / name / "checkpoints").glob("*2/server.safetensors")
        found.append(server.read_bytes())
    assert found[0] == found[1]


METHODS = ("fedlc", "fedntd", "fedrep", "moon", "ditto", "fedper", "scaffold", "mime", "fednova")


@pytest.mark.parametrize("name", METHODS)
def test_methods_leave_padding_out(name, tmp_path):
    """What stands in the place of padding changes nothing; nor does its number."""
    logs = []
    for number in (-100, 0, WORDS):
        y = NEXT.clip(min=1)
        y[::3, -2:] = number
        algorithm = {"name": name}
        more = {"evaluate": {"every": 1, "personal": True}, "data": {"clients": 3, "holdout": 0.3}}
        if name not in ("fedrep", "ditto", "fedper"):
            more["evaluate"]["personal"] = {"steps": 1}
        logs.append(
            run(tmp_path, texts(y, number), Tagger, f"{number}", algorithm=algorithm, **more).log[
                -1
            ]
        )
    for key in ("train_loss", "test_loss", "personal_loss"):
        values = {log.get(key) for log in logs}
        assert len(values) == 1, (key, values)
    assert math.isfinite(logs[0]["test_loss"])
    for loss, perplexity in PERPLEXITIES.items():
        if loss in logs[0]:
            assert logs[0][perplexity] == math.exp(logs[0][loss])
    assert "personal_perplexity" in logs[0]


def own_terms(outputs, labels):
    """A loss that refuses what is no class, as torch's would on a GPU by ending the process."""
    flat = functional.cross_entropy(
        outputs.flatten(0, -2), labels.flatten(), reduction="none", ignore_index=-1
    )
    return flat.view(labels.shape)


def test_a_loss_of_ones_own_sees_classes_alone(tmp_path):
    data, model = texts(padded(255), 255), Tagger
    own = run(tmp_path, data, model, "own", loss=own_terms).log[-1]
    of_data = run(tmp_path, data, model, "data").log[-1]
    assert own["train_loss"] == pytest.approx(of_data["train_loss"], rel=1e-12)
    assert own["test_loss"] == pytest.approx(of_data["test_loss"], rel=1e-12)
    assert "test_perplexity" not in own


def test_a_metric_of_ones_own_sees_the_labels_as_they_are(tmp_path):
    last = run(
        tmp_path, texts(padded(-100), -100), Tagger, evaluate={"metrics": [real_labels]}
    ).log[-1]
    assert last["test_real_labels"] == (padded(-100)[16:] >= 0).sum(1).mean()


def real_labels(outputs, labels):
    return (labels >= 0).sum(1).double()


class First(nn.Module):
    """One answer a text."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.table = nn.Embedding(WORDS, outputs)

    def forward(self, words):
        return self.table(words[:, 0])


class ClassesFirst(Tagger):
    def forward(self, words):
        return super().forward(words).transpose(1, 2)


REFUSED = {
    "one answer": (
        lambda: (texts(NEXT), First, {}),
        r"its outputs in forward \(.*\) have the shape \(5, 7\) for labels \(5, 4\) of .*, "
        r"expected \(5, 4, 7\); return a logit of each class for each label",
    ),
    "classes first": (
        lambda: (texts(NEXT), ClassesFirst, {}),
        r"the shape \(5, 7, 4\) .*, expected \(5, 4, 7\); move the classes last: .*movedim",
    ),
    "one class an example": (
        lambda: (texts(NEXT[:, :1]), First, {}),
        r"shape \(5, 7\) for labels \(5, 1\) .*; store labels of one class an example as \(5,\)",
    ),
    "bits as integers": (
        lambda: (table(BITS.astype(int)), lambda: nn.Linear(5, LABELS), {}),
        r"shape \(5, 3\) for labels \(5, 3\) .*, expected \(5, 3, 2\); .*label_type: bits",
    ),
    "too many bits": (
        lambda: (table(BITS), lambda: nn.Linear(5, 4), {}),
        r"the shape \(5, 4\), expected that of the labels, \(5, 3\): .* bits, each of which has",
    ),
    "padding nowhere": (
        lambda: (texts(NEXT, 50), Tagger, {}),
        r"data.padding: 50: no label of y and y_test is 50, and it is no class \(0 to 6\)",
    ),
    "padding not said": (
        lambda: (texts(padded(-100)), Tagger, {}),
        r"y runs from -100 to 6 .*, expected integers from 0 to 6.*say data.padding: -100",
    ),
    "padding of targets": (
        lambda: (table(TARGETS, padding=0), Targets, {}),
        r"data.padding: 0: padding is of several classes an example, and y is float64",
    ),
    "padding of one class": (
        lambda: (table(NEXT[:, 0], padding=0), Targets, {}),
        r"padding is of several classes an example, and y is int64 of shape \(16,\)",
    ),
    "by label": (
        lambda: (
            texts(NEXT),
            Tagger,
            {"data": {"clients": 2, "partition": {"kind": "dirichlet", "alpha": 0.5}}},
        ),
        r"data.partition.kind: dirichlet needs one label per example, this data set has labels of "
        r"shape \[4\] of each; use iid",
    ),
    "by one label of several": (
        lambda: (
            texts(NEXT[:, :1]),
            Tagger,
            {"data": {"clients": 2, "partition": {"kind": "classes", "per_client": 1}}},
        ),
        r"data.partition.kind: classes needs one label per example, .* labels of shape \[1\] of",
    ),
    "a method of classes": (
        lambda: (table(BITS), Targets, {"algorithm": {"name": "fedlc"}}),
        "fedlc.*sees the logits of classes, and this data has none",
    ),
    "three axes of bits": (
        lambda: (table(BITS[:, :, None]), Targets, {}),
        r"y has the shape \(16, 3, 1\), expected bits \[n, t\]",
    ),
    "a score of other data": (
        lambda: (texts(NEXT), Tagger, {"stop": {"metric": "test_f1", "patience": 1}}),
        "stop.metric: found test_f1, expected .*test_perplexity",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_gets_one_line(case, tmp_path):
    (data, model, changes), line = REFUSED[case][0](), REFUSED[case][1]
    with pytest.raises(HpcflError, match=line) as caught:
        run(tmp_path, data, model, **changes)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Own(DataConfig):
    """A data set of a user's own, with these fields in the place of others."""

    case: str

    def load(self, seed):
        labels = torch.from_numpy(NEXT).to(torch.int16)
        found = Dataset(
            train=Examples(torch.from_numpy(X), labels),
            test=Examples(torch.from_numpy(X), labels),
            natural=None,
            classes=WORDS,
            loss="tokens",
            transform=to_indices,
        )
        changes, new = OWN[self.case][0], found.train
        if "labels" in changes:
            new = found.train._replace(labels=changes["labels"](labels))
        rest = {key: value for key, value in changes.items() if key != "labels"}
        return replace(found, train=new, **rest)


def with_minus_100(labels):
    return labels.masked_fill(labels == 3, -100)


OWN = {
    "negative": (
        {"labels": with_minus_100},
        "the labels of train run from -100 to 6, expected 0 to 6, as its classes are 7; if -100 is "
        "padding, say so in padding",
    ),
    "negative in a mapped file": (
        {"labels": with_minus_100, "mapped": True},
        "the labels of train run from -100 to 6",
    ),
    "other padding": (
        {"labels": with_minus_100, "padding": 0},
        "the labels of train run from -100 to 6, expected 0 to 6, as its classes are 7$",
    ),
    "a type without padding": (
        {"labels": lambda labels: labels.to(torch.uint8), "padding": -100},
        r"its padding is -100, which its labels of train, torch.uint8, cannot be",
    ),
    "floats": (
        {"labels": lambda labels: labels.double()},
        "the labels of train are torch.float64, expected integers, as its classes are 7",
    ),
    "one loss for all": (
        {"loss": "cross_entropy"},
        r"the labels of train have the shape \(24, 4\), expected \(24,\), one class an example; "
        "for several an example its loss is tokens",
    ),
    "bits": (
        {"loss": "bits", "classes": None},
        r"are torch.int16 of shape \(24, 4\), expected booleans \(24, t\) for the loss bits",
    ),
    "no classes": (
        {"classes": None},
        "its classes are None, expected how many for its loss tokens",
    ),
    "no label": (
        {"labels": lambda labels: labels[:, :0]},
        r"the labels of train have the shape \(24, 0\): an example has none",
    ),
    "padding of targets": (
        {"labels": lambda labels: labels.double(), "loss": "squared", "padding": 0},
        "its padding is 0, but its loss squared; expected None, as padding is of the loss tokens",
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_labels_of_a_class_of_ones_own_get_one_line(case, tmp_path):
    with pytest.raises(JobError, match=OWN[case][1]) as caught:
        run(tmp_path, Own(case=case), Tagger)
    assert "\n" not in str(caught.value)


def test_padding_that_occurs_nowhere_is_said(tmp_path, capsys):
    run(tmp_path, texts(NEXT, -100), Tagger, rounds=1)
    assert "data.padding: -100: no label of y and y_test is -100, so every label counts" in (
        capsys.readouterr().err
    )


def test_lists_of_unequal_length_are_filled_up_by_padding(tmp_path):
    y, given = padded(-100), []
    for row, words in zip(y, X + 1, strict=True):
        length = int((row >= 0).sum())
        given.append((words[:length].tolist(), row[:length].tolist()))
    x, labels = ([pair[k] for pair in given] for k in (0, 1))
    ragged = hpcfl.Data((x, labels), integers=True, padding=-100)
    assert np.array_equal(ragged.arrays()["y"], y)
    assert np.array_equal(hpcfl.Data(given, integers=True, padding=-100).arrays()["y"], y)
    with pytest.raises(HpcflError, match=r"train, y: .*of unequal length need padding=-100"):
        hpcfl.Data((x, labels), integers=True).arrays()


def test_a_run_stops_by_its_perplexity(tmp_path):
    stop = {"metric": "test_perplexity", "target": 1000.0}
    done = run(tmp_path, texts(NEXT), Tagger, stop=stop, rounds=9)
    assert len(done.log) < 9
    status = json.loads((tmp_path / "run/log.jsonl").read_text().splitlines()[-1])
    assert status["test_perplexity"] < 1000
