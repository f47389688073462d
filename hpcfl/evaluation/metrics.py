"""Sum losses and correct answers over one batch, without waiting for a GPU.

Callers add the sums of batches and ranks.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.data.base import Dataset
from hpcfl.models.losses import LOSSES, NO_CLASS, as_targets, widen
from hpcfl.types import ANSWERED, LossName

TOP = 5


class Scoring(NamedTuple):
    """What the labels of a data set are, and which count; see ``Dataset``."""

    loss: LossName
    classes: int | None = None
    """How many there are; the model may have more outputs."""
    padding: int | None = None
    scored: range | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> "Scoring":
        """That of a data set."""
        return cls(dataset.loss, dataset.classes, dataset.padding, dataset.scored)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sums that ``totals`` returns, in its order."""
        if self.loss not in ANSWERED:
            return ("loss", "examples")
        top = ("correct_top5",) if self.classes is not None and self.classes > TOP else ()
        return ("loss", "examples", "scored", "correct", *top)


def totals(
    scoring: Scoring,
    outputs: Tensor,
    labels: Tensor,
    terms: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Sum the losses and the correct answers of a batch: 0-d float64 tensors on the device.

    ``loss`` is the sum over ``examples``.  A classification adds ``correct``, the number of correct
    answers among ``scored`` labels; with more than 5 classes also ``correct_top5``, where the label
    is among the five largest outputs, and of two equal outputs that of the lower class counts as
    larger.  Outputs that are not numbers give no correct answer.  For ``tokens``, each label that
    is no padding is an example, and each of a class that is scored is scored.  For ``bits``, each
    bit is scored; it is said to be 1 where its logit is above 0.  Losses are computed per example
    in float32 or wider and added in float64, so that the sum over a large test set keeps its
    digits.

    Args:
        scoring: of the data.
        outputs: of the model, [B, ...].
        labels: [B] or [B, ...] classes, [B, ...] targets, [B, t] bits, or unused.
        terms: of another loss than the data's: [B] of outputs in float32 or wider and labels [B].
    """
    loss, classes = scoring.loss, scoring.classes
    correct: dict[str, Tensor] = {}
    padding: Tensor | None = None
    if loss == "tokens":
        outputs, labels = outputs.flatten(0, -2), labels.flatten().long()
        counted = torch.ones_like(labels, dtype=torch.bool)
        if scoring.padding is not None:
            padding = labels == scoring.padding
            if labels.device.type == "cpu":  # for a GPU's the host would have to wait
                outputs, labels, padding = outputs[~padding], labels[~padding], None
                counted = torch.ones_like(labels, dtype=torch.bool)
            else:
                labels, counted = labels.masked_fill(padding, 0), ~padding
        if scoring.scored is not None:
            first, end = scoring.scored.start, scoring.scored.stop
            counted = counted & (labels >= first) & (labels < end)
        correct = _correct(outputs, labels, counted, classes)
    elif loss == "cross_entropy":
        correct = _correct(outputs, labels, torch.ones_like(labels, dtype=torch.bool), classes)
    elif loss == "bits":
        correct = _correct_bits(as_targets(outputs), labels)
    if terms is not None:
        losses = terms(widen(outputs), labels)
    elif loss in ("cross_entropy", "tokens"):
        losses = functional.cross_entropy(
            widen(outputs), labels, reduction="none", ignore_index=NO_CLASS
        )
    else:
        losses = LOSSES[loss].terms(widen(outputs), labels)
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


def _correct_bits(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The number of bits [B, t], and of those the number of correct ones."""
    hits = torch.where(labels.view_as(outputs), outputs > 0, outputs <= 0)
    scored = torch.full((), hits.numel(), dtype=torch.float64, device=hits.device)
    return {"scored": scored, "correct": hits.sum().double()}


def _rank_of_label(outputs: Tensor, labels: Tensor) -> Tensor:
    """[B]: the number of classes ranked before the label; all of them if its output is NaN.

    Not by ``torch.topk``, which leaves the order of equal outputs undefined; nor by ``argmax``,
    which calls a NaN the largest.
    """
    own = outputs.gather(1, labels[:, None])
    lower = torch.arange(outputs.shape[1], device=outputs.device) < labels[:, None]
    return (~(outputs <= own) | ((outputs == own) & lower)).sum(1)
