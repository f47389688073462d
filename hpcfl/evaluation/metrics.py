"""The sums of one batch in an evaluation; sums of batches and of ranks are added."""

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.data.vocabulary import are_words
from hpcfl.models.losses import residuals, widen
from hpcfl.types import PAD, LossName

TOP = 5


def names(loss: LossName, classes: int | None) -> tuple[str, ...]:
    """The names of the sums of ``totals``, for a model with one output per class."""
    if loss not in ("cross_entropy", "tokens"):
        return ("loss", "examples")
    top = ("correct_top5",) if classes is not None and classes > TOP else ()
    return ("loss", "examples", "scored", "correct", *top)


def totals(loss: LossName, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Sums over the batch.

    ``loss`` is the sum over ``examples``; a classification adds ``correct``, out of ``scored``, and
    for more than 5 classes ``correct_top5``: the label is among the five largest outputs, where the
    lower class comes first of two equal ones.  For ``tokens`` the examples are the labels but
    padding, and the scored ones are words of the vocabulary.  Losses are computed per example in
    float32 or wider and added in float64, so that the sum of a large test set keeps its digits.

    Args:
        loss: which loss.
        outputs: of the model, [B, ...].
        labels: [B] or [B, T] classes, [B, targets], or unused.
    """
    correct: dict[str, float] = {}
    if loss == "tokens":
        present = labels != PAD
        outputs, labels = outputs[present], labels[present].long()
        correct = _correct(outputs, labels, are_words(labels, outputs.shape[1]))
    elif loss == "cross_entropy":
        correct = _correct(outputs, labels, torch.ones_like(labels, dtype=torch.bool))
    if loss == "squared":
        losses = 0.5 * residuals(outputs, labels).square().flatten(1).sum(1)
    elif loss == "quadratic":
        losses = widen(outputs)
    else:
        losses = functional.cross_entropy(widen(outputs), labels, reduction="none")
    total = float(losses.sum(dtype=torch.float64))
    return {"loss": total, "examples": float(len(outputs)), **correct}


def _correct(outputs: Tensor, labels: Tensor, scored: Tensor) -> dict[str, float]:
    """Numbers of scored labels and of correct ones, of outputs [B, n], labels [B], scored [B]."""
    right = {"correct": outputs.argmax(1) == labels}
    if outputs.shape[1] > TOP:
        right["correct_top5"] = _rank_of_label(outputs, labels) < TOP
    found = {name: float((hit & scored).sum()) for name, hit in right.items()}
    return {"scored": float(scored.sum()), **found}


def _rank_of_label(outputs: Tensor, labels: Tensor) -> Tensor:
    """[B]: the number of classes ranked before the label; all of them if its output is NaN."""
    own = outputs.gather(1, labels[:, None])
    lower = torch.arange(outputs.shape[1], device=outputs.device) < labels[:, None]
    return (~(outputs <= own) | ((outputs == own) & lower)).sum(1)
