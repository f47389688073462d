"""Sum losses and correct answers over one batch, without waiting for a GPU.

Callers add the sums of batches and ranks.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.data.vocabulary import are_words
from hpcfl.models.losses import residuals, widen
from hpcfl.types import PAD, LossName

TOP = 5


def names(loss: LossName, classes: int | None) -> tuple[str, ...]:
    """The names of the sums that ``totals`` returns, in its order.

    Args:
        loss: which loss.
        classes: how many the data has; None without classes.
    """
    if loss not in ("cross_entropy", "tokens"):
        return ("loss", "examples")
    top = ("correct_top5",) if classes is not None and classes > TOP else ()
    return ("loss", "examples", "scored", "correct", *top)


def totals(
    loss: LossName,
    classes: int | None,
    outputs: Tensor,
    labels: Tensor,
    terms: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Sum the losses and the correct answers of a batch: 0-d float64 tensors on the device.

    ``loss`` is the sum over ``examples``.  A classification adds ``correct``, the number of correct
    answers among ``scored`` labels; with more than 5 classes also ``correct_top5``, where the label
    is among the five largest outputs, and of two equal outputs that of the lower class counts as
    larger.  Outputs that are not numbers give no correct answer.  For ``tokens``, each label that
    is no padding is an example, and each label that is a word of the vocabulary is scored.  Losses
    are computed per example in float32 or wider and added in float64, so that the sum over a large
    test set keeps its digits.

    Args:
        loss: which loss.
        classes: how many the data has; the model may have more outputs.  None without classes.
        outputs: of the model, [B, ...].
        labels: [B] or [B, T] classes, [B, targets], or unused.
        terms: of another loss than the data's: [B] of outputs in float32 or wider and labels [B].
    """
    correct: dict[str, Tensor] = {}
    padding: Tensor | None = None
    if loss == "tokens":
        outputs, labels = outputs.flatten(0, -2), labels.flatten().long()
        padding = labels == PAD
        if labels.device.type == "cpu":  # for a GPU's the host would have to wait
            outputs, labels, padding = outputs[~padding], labels[~padding], None
        # Without a number of classes, every output is one.
        all_classes = classes if classes is not None else outputs.shape[1]
        correct = _correct(outputs, labels, are_words(labels, all_classes), classes)
    elif loss == "cross_entropy":
        correct = _correct(outputs, labels, torch.ones_like(labels, dtype=torch.bool), classes)
    if terms is not None:
        losses = terms(widen(outputs), labels)
    elif loss == "squared":
        losses = 0.5 * residuals(outputs, labels).square().sum(1)
    elif loss == "quadratic":
        losses = widen(outputs)
    else:
        losses = functional.cross_entropy(widen(outputs), labels, reduction="none")
    examples = torch.full((), len(outputs), dtype=torch.float64, device=losses.device)
    if padding is not None:
        losses, examples = losses.masked_fill(padding, 0.0), (~padding).sum().double()
    return {"loss": losses.sum(dtype=torch.float64), "examples": examples, **correct}


def _correct(
    outputs: Tensor, labels: Tensor, scored: Tensor, classes: int | None
) -> dict[str, Tensor]:
    """The number of scored labels, and of those the numbers of correct ones.

    Args:
        outputs: [B, n].
        labels: [B].
        scored: [B], which labels count.
        classes: how many the data has, or None.
    """
    rank = _rank_of_label(outputs, labels)
    hits = {"correct": rank < 1}
    if classes is not None and classes > TOP:
        hits["correct_top5"] = rank < TOP
    counts = {name: (hit & scored).sum().double() for name, hit in hits.items()}
    return {"scored": scored.sum().double(), **counts}


def _rank_of_label(outputs: Tensor, labels: Tensor) -> Tensor:
    """[B]: the number of classes ranked before the label; all of them if its output is NaN.

    Not by ``torch.topk``, which leaves the order of equal outputs undefined; nor by ``argmax``,
    which calls a NaN the largest.
    """
    own = outputs.gather(1, labels[:, None])
    lower = torch.arange(outputs.shape[1], device=outputs.device) < labels[:, None]
    return (~(outputs <= own) | ((outputs == own) & lower)).sum(1)
