import math

import pytest
import torch

from hpcfl.data import SOURCES
from hpcfl.evaluation.metrics import Scoring, totals
from hpcfl.job.tasks import TASKS
from hpcfl.models import MODELS
from hpcfl.models.losses import LOSSES, loss_of

LOGITS = torch.tensor([[0.0, math.log(3)], [0.0, 0.0], [math.log(3), 0.0]])
CLASSES = torch.tensor([1, 0, 1])
OUTPUTS = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
TARGETS = torch.tensor([[0.0, 0.0], [3.0, -1.0]], dtype=torch.float64)
CASES = [  # loss, outputs, labels, the sum of the losses
    ("cross_entropy", LOGITS, CLASSES, -math.log(3 / 4) - math.log(1 / 2) - math.log(1 / 4)),
    ("squared", OUTPUTS, TARGETS, (1 + 4) / 2 + 9 / 2),
    ("squared", OUTPUTS[:, :1], TARGETS[:, 0], 1 / 2 + 9 / 2),
    (
        "bits",
        torch.tensor([[0.0, math.log(3)], [-math.log(3), 0.0]]),
        torch.tensor([[True, True], [True, False]]),
        -math.log(1 / 2) - math.log(3 / 4) - math.log(1 / 4) - math.log(1 / 2),
    ),
    ("quadratic", torch.tensor([2.0, -3.5]), torch.zeros(2), -1.5),
]


@pytest.mark.parametrize(("loss", "outputs", "labels", "total"), CASES)
def test_losses_by_hand(loss, outputs, labels, total):
    assert float(LOSSES[loss](outputs, labels)) == pytest.approx(total / len(outputs))
    assert totals(Scoring(loss), outputs, labels)["loss"] == pytest.approx(total)


@pytest.mark.parametrize(("loss", "outputs", "labels", "total"), CASES)
def test_losses_are_never_narrower_than_float32(loss, outputs, labels, total):
    def dtype(narrow):
        return LOSSES[loss](outputs.to(narrow), labels).dtype

    assert dtype(torch.bfloat16) == dtype(torch.float16) == dtype(torch.float32) == torch.float32
    assert dtype(torch.float64) == torch.float64
    rough = totals(Scoring(loss), outputs.bfloat16(), labels)["loss"]
    assert rough == pytest.approx(total, rel=0.02)


def test_totals_add_up_over_batches():
    whole = totals(Scoring("cross_entropy", 2), LOGITS, CLASSES)
    parts = [
        totals(Scoring("cross_entropy", 2), LOGITS[k : k + 1], CLASSES[k : k + 1]) for k in range(3)
    ]
    counts = {"examples": 3.0, "scored": 3.0, "correct": 2.0}
    assert whole == {"loss": pytest.approx(whole["loss"]), **counts}
    for name, value in whole.items():
        assert sum(part[name] for part in parts) == pytest.approx(value)


# 2 words: classes are padding, two words, oov, begin, end.  Every logit is 0 but one of log 5.
WORDS = Scoring("tokens", 6, padding=0, scored=range(1, 3))
SENTENCES = torch.tensor([[1, 2, 5, 0], [3, 2, 1, 2], [0, 0, 0, 0]])
LARGEST = torch.tensor([[1, 1, 5, 0], [2, 2, 2, 2], [1, 1, 1, 1]])
ANSWERS = torch.nn.functional.one_hot(LARGEST, 6) * math.log(5)
HIT, MISS = -math.log(5 / 10), -math.log(1 / 10)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
def test_tokens_by_hand(dtype):
    """Of seven labels that are no padding four are hit; of the five words among them three."""
    labels = SENTENCES.to(dtype)
    total = 4 * HIT + 3 * MISS
    assert float(loss_of("tokens", 0)(ANSWERS, labels)) == pytest.approx(total / 7)
    found = totals(WORDS, ANSWERS, labels)
    assert found.pop("loss") == pytest.approx(total)
    assert found.pop("correct_top5") == 5
    assert found == {"examples": 7.0, "scored": 5.0, "correct": 3.0}
    assert loss_of("tokens", 0).count(labels) == 7
    assert LOSSES["cross_entropy"].count(CLASSES) == LOSSES["squared"].count(TARGETS) + 1 == 3


def test_more_outputs_than_classes_make_no_special_token_a_word():
    """As of a model whose last layer is padded to a round number."""
    more = torch.nn.functional.pad(ANSWERS, (0, 10))
    found, expected = totals(WORDS, more, SENTENCES), totals(WORDS, ANSWERS, SENTENCES)
    assert found.keys() == expected.keys()
    for count in ("examples", "scored", "correct"):
        assert found[count] == expected[count]
    assert "correct_top5" not in totals(
        Scoring("cross_entropy", 3), torch.zeros(1, 8), torch.tensor([2])
    )


def test_outputs_that_are_not_numbers_are_no_correct_answers():
    broken = torch.full((4, 10), math.nan)
    found = totals(Scoring("cross_entropy", 10), broken, torch.zeros(4, dtype=torch.int64))
    assert (found["correct"], found["correct_top5"], found["scored"]) == (0, 0, 4)


def test_tokens_once_a_sentence():
    """Labels 2, 5 and 3: of words only the first, which is missed."""
    outputs, labels = ANSWERS[:, 0], torch.tensor([2, 5, 3])
    assert float(loss_of("tokens", 0)(outputs, labels)) == pytest.approx(MISS)
    found = totals(WORDS, outputs, labels)
    assert (found["examples"], found["scored"], found["correct"]) == (3, 1, 0)


def test_tokens_of_padding_alone_are_worth_nothing():
    outputs = ANSWERS[2:].clone().requires_grad_()
    loss = loss_of("tokens", 0)(outputs, SENTENCES[2:])
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert float(loss.detach()) == 0
    assert not gradient.any()
    assert totals(WORDS, ANSWERS[2:], SENTENCES[2:]) == {
        "loss": 0, "examples": 0, "scored": 0, "correct": 0, "correct_top5": 0
    }  # fmt: skip


def test_every_label_counts_without_padding():
    """Of 12 labels, five of which are of class 0, five are hit."""
    total = 5 * HIT + 7 * MISS
    assert float(LOSSES["tokens"](ANSWERS, SENTENCES)) == pytest.approx(total / 12)
    counts = torch.tensor([1.0, 0.0, 1.0])
    alone = LOSSES["tokens"](ANSWERS[::2], SENTENCES[::2])
    assert float(LOSSES["tokens"](ANSWERS, SENTENCES, counts)) == pytest.approx(float(alone))
    assert LOSSES["tokens"].count(SENTENCES) == 12
    found = totals(Scoring("tokens", 6), ANSWERS, SENTENCES)
    assert found["loss"] == pytest.approx(total)
    assert (found["examples"], found["scored"], found["correct"]) == (12, 12, 5)


@pytest.mark.parametrize("padding", [-100, -1, 6, 300])
def test_padding_may_be_no_class(padding):
    """The same labels are left out as where it is class 0."""
    labels = SENTENCES.masked_fill(SENTENCES == 0, padding)
    found, expected = loss_of("tokens", padding), loss_of("tokens", 0)
    torch.testing.assert_close(found(ANSWERS, labels), expected(ANSWERS, SENTENCES))
    counts = torch.tensor([1.0, 0.0, 1.0])
    torch.testing.assert_close(found(ANSWERS, labels, counts), expected(ANSWERS, SENTENCES, counts))
    assert found.count(labels) == expected.count(SENTENCES) == 7
    assert totals(WORDS._replace(padding=padding), ANSWERS, labels) == totals(
        WORDS, ANSWERS, SENTENCES
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "tokens"])
def test_torchs_own_padding_is_none(loss):
    """A label of -100 is left out where the data says so, and refused elsewhere."""
    labels = torch.tensor([1, -100, 0])
    with pytest.raises(IndexError, match="Target -100 is out of bounds"):
        LOSSES[loss](LOGITS, labels)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        totals(Scoring(loss, 2), LOGITS, labels)


def test_bits_that_are_not_numbers_are_no_correct_answers():
    """A bit is said to be 1 where its logit is above 0."""
    outputs = torch.tensor([[0.5, -0.5, 0.0], [math.nan, math.nan, 3.0]])
    labels = torch.tensor([[True, True, False], [True, False, False]])
    found = totals(Scoring("bits"), outputs, labels)
    assert (found["scored"], found["correct"]) == (6, 2)


def test_a_term_of_padding_need_not_be_finite():
    terms = torch.tensor([[1.0, math.inf], [3.0, 5.0]], requires_grad=True)
    mean = loss_of("tokens", 0).mean(terms, torch.tensor([[1, 0], [2, 2]]))
    (gradient,) = torch.autograd.grad(mean, terms)
    assert mean.item() == 3
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0.0], [1.0, 1.0]]) / 3)


def test_tokens_add_up_over_batches():
    whole = totals(WORDS, ANSWERS, SENTENCES)
    parts = [totals(WORDS, ANSWERS[k : k + 1], SENTENCES[k : k + 1]) for k in range(3)]
    for name, value in whole.items():
        assert sum(part[name] for part in parts) == pytest.approx(value)


def test_squared_refuses_to_broadcast():
    with pytest.raises(RuntimeError):
        LOSSES["squared"](torch.zeros(4, 1), torch.zeros(1))


@pytest.mark.parametrize("name", TASKS)
def test_tasks_name_what_there_is(name):
    data, model = dict(TASKS[name]["data"]), dict(TASKS[name]["model"])
    SOURCES[data.pop("kind")](**data)
    MODELS[model.pop("name")](**model)


def test_tasks_have_fitting_parts():
    for name in ("digits", "quadratics"):
        data, model = dict(TASKS[name]["data"]), dict(TASKS[name]["model"])
        dataset = SOURCES[data.pop("kind")](**data).load(0)
        inputs = dataset.transform(dataset.train.inputs[:3], torch.float32, None)
        built = MODELS[model.pop("name")](**model).build(
            tuple(inputs.shape[1:]), dataset.classes or 1
        )
        assert LOSSES[dataset.loss](built(inputs), dataset.train.labels[:3]).isfinite()


@pytest.mark.parametrize("loss", LOSSES)
def test_examples_that_do_not_count_are_not_there(loss):
    """Their place is filled with anything; where none counts, the loss and its gradient are 0."""
    torch.manual_seed(0)
    outputs, labels = {
        "cross_entropy": (torch.randn(4, 5), torch.randint(0, 5, (4,))),
        "tokens": (torch.randn(4, 3, 5), torch.randint(0, 5, (4, 3))),
        "squared": (torch.randn(4, 2), torch.randn(4, 2)),
        "bits": (torch.randn(4, 2), torch.rand(4, 2) > 0.5),
        "quadratic": (torch.randn(4), torch.zeros(4)),
    }[loss]
    outputs = outputs.double().requires_grad_()
    counts = torch.tensor([1.0, 0.0, 1.0, 0.0])
    alone = LOSSES[loss](outputs[::2], labels[::2])
    torch.testing.assert_close(LOSSES[loss](outputs, labels, counts), alone)
    none = LOSSES[loss](outputs, labels, torch.zeros(4))
    (gradient,) = torch.autograd.grad(none, outputs)
    assert none.item() == 0
    assert not gradient.any()
