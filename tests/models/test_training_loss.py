"""``loss`` of a job: the built-in ones against torch, and a function of the user's."""

import pytest
import torch
from torch.nn import functional

import hpcfl
from hpcfl.errors import JobError
from hpcfl.models.losses import loss_of
from hpcfl.models.training_loss import Focal, LabelSmoothing, OwnLoss, training_loss
from tests.algorithms.play import play, softmax_problem, tree

LOGITS = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 1, 1, 2, 0, 3])
SENTENCES = torch.tensor([[1, 2, 0], [3, 0, 0]])  # 0 is padding


def doubled(outputs, labels, factor=2.0):
    return factor * functional.cross_entropy(outputs, labels, reduction="none")


def summed(outputs, labels):
    return doubled(outputs, labels).cumsum(0)


def balanced(outputs, labels):
    return doubled(outputs, labels) / torch.bincount(labels)[labels]


def backwards(outputs, labels):
    return doubled(outputs, labels).flip(0)


def mean(outputs, labels):
    return functional.cross_entropy(outputs, labels)


def test_label_smoothing_is_torchs():
    found = LabelSmoothing(smoothing=0.3).terms(LOGITS, LABELS)
    expected = functional.cross_entropy(LOGITS, LABELS, reduction="none", label_smoothing=0.3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_its_formula(gamma):
    p = LOGITS.softmax(1)[range(7), LABELS]
    found, expected = Focal(gamma=gamma).terms(LOGITS, LABELS), -((1 - p) ** gamma) * p.log()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_focal_has_a_gradient_where_an_example_is_classified_well():
    """Where 1 - p rounds to 0: a power below 1 has none at 0."""
    sure = torch.tensor([[60.0, 0.0]], requires_grad=True)
    Focal(gamma=0.5).terms(sure, torch.tensor([0])).sum().backward()
    assert sure.grad.isfinite().all()


def test_the_mean_is_over_real_examples_and_labels():
    loss = training_loss(Focal(gamma=0.0), "cross_entropy")
    counts = torch.tensor([1.0, 1, 0, 1, 0, 1, 1])
    kept = counts > 0
    expected = functional.cross_entropy(LOGITS[kept], LABELS[kept])
    torch.testing.assert_close(loss(LOGITS, LABELS, counts), expected)
    words, tokens = training_loss(Focal(gamma=0.0), "tokens", 0), loss_of("tokens", 0)
    outputs = LOGITS[:6].view(2, 3, 4)
    torch.testing.assert_close(words(outputs, SENTENCES), tokens(outputs, SENTENCES))
    counts = torch.tensor([1.0, 0.0])
    torch.testing.assert_close(
        words(outputs, SENTENCES, counts), tokens(outputs, SENTENCES, counts)
    )


def job(tmp_path, loss, **more):
    local = {"epochs": 2, "batch_size": 4, "lr": 0.3}
    return tree(tmp_path, softmax_problem(), {"name": "fedavg"}, local=local, loss=loss, **more)


@pytest.mark.parametrize("loss", ["label_smoothing", {"kind": "focal", "gamma": 1.5}, doubled])
def test_blocks_agree_with_one_client_at_a_time(tmp_path, loss):
    name = f"{__name__}.doubled" if callable(loss) else loss
    ends = [
        play(tmp_path, job(tmp_path, name, executor=executor))
        for executor in ("sequential", "block")
    ]
    torch.testing.assert_close(ends[0].x, ends[1].x, rtol=0, atol=1e-12)
    plain = play(tmp_path, job(tmp_path, "data"))
    assert (ends[0].x - plain.x).abs().max() > 1e-3


def test_the_log_has_the_losses_of_the_job(tmp_path):
    """Twice the loss at the initial model; and its gradients are twice as long."""
    half = {"epochs": 2, "batch_size": 4, "lr": 0.15}
    own = {"kind": "own", "of": f"{__name__}.doubled"}
    twice = play(tmp_path, job(tmp_path, own) | {"local": half})
    plain = play(tmp_path, job(tmp_path, "data"))
    torch.testing.assert_close(twice.x, plain.x, rtol=0, atol=1e-12)
    for key in ("train_loss", "test_loss"):
        pairs = [(a[key], b[key]) for a, b in zip(twice.log, plain.log, strict=True) if key in a]
        assert all(a == pytest.approx(2 * b, rel=1e-12) for a, b in pairs)


WRONG = {
    f"{__name__}.mean": "expected terms (3,), one for each example or label; the mean is hpcfl's",
    f"{__name__}.doubledd": "did you mean doubled?",
    f"{__name__}.LABELS": "expected a function of outputs and labels",
    "hinge": "expected one of data, label_smoothing, focal, or a dotted path",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loss_is_one_line(tmp_path, name):
    with pytest.raises(JobError) as refused:
        play(tmp_path, job(tmp_path, name))
    assert WRONG[name] in str(refused.value)
    assert "loss: " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["summed", "balanced", "backwards", "doubled"])
def test_terms_that_depend_on_other_examples_are_noted(tmp_path, capsys, name):
    play(tmp_path, job(tmp_path, f"{__name__}.{name}"))
    said = f"warning: loss: {__name__}.{name}: its term of an example depends on the other examples"
    assert (said in capsys.readouterr().err) == (name != "doubled")


def test_terms_that_are_not_finite_are_not_compared(tmp_path, monkeypatch):
    """At parameters far from the initial ones, where nobody trains."""
    monkeypatch.setattr("hpcfl.start.checks.model._MOVED", 1.7e308)
    checked = hpcfl.check(job(tmp_path, f"{__name__}.doubled"), load=True)
    assert "depends on the other" not in checked.summary


def test_a_wrong_key_of_a_loss_is_one_line(tmp_path):
    own = {"kind": "own", "of": f"{__name__}.doubled", "keys": {"facto": 3.0}}
    said = r'loss\.keys: \S*doubled has no "facto" \(it has factor\); did you mean factor\?$'
    with pytest.raises(JobError, match=said):
        play(tmp_path, job(tmp_path, own))


def test_a_loss_of_classes_needs_classes(tmp_path):
    made = job(tmp_path, "focal") | {"data": {"kind": "quadratics"}, "model": {"name": "point"}}
    made |= {"cohort": {"kind": "cyclic", "size": 1}, "local": {"steps": 1, "lr": 0.1}}
    with pytest.raises(JobError, match=r"^loss: focal is of classes, but the labels of data\.kind"):
        play(tmp_path, made)


def test_keys_of_a_function():
    loss = OwnLoss(of=f"{__name__}.doubled", keys={"factor": 3.0})
    expected = 3 * functional.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(loss.terms(LOGITS, LABELS), expected)


@pytest.mark.parametrize("kept_as", [torch.uint8, torch.int16])
def test_a_function_is_given_classes_in_int64(kept_as):
    """As functions of torch want them, in whatever type a data set keeps them."""
    found = OwnLoss(of=f"{__name__}.doubled").terms(LOGITS, LABELS.to(kept_as))
    assert torch.equal(found, OwnLoss(of=f"{__name__}.doubled").terms(LOGITS, LABELS))
