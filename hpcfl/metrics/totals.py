"""What a batch adds to an evaluation: sums, so that batches and ranks can be added up."""

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.data.base import LossName
from hpcfl.tasks.losses import residuals, widen

TOP = 5


def names(loss: LossName, classes: int | None) -> tuple[str, ...]:
    """What ``totals`` holds, of a model with an output per class."""
    if loss != "cross_entropy":
        return ("loss", "examples")
    top = ("correct_top5",) if classes is not None and classes > TOP else ()
    return ("loss", "examples", "correct", *top)


def totals(loss: LossName, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Sums over the batch: ``loss`` and ``examples``, of a classification also ``correct``.

    Of more than 5 classes also ``correct_top5``: the label is among the five largest outputs, the
    lower class first where two are equal.  Losses are computed per example in float32 or wider
    and added in float64.

    Args:
        loss: which loss.
        outputs: of the model, [B, ...].
        labels: [B] classes, [B, targets], or unused.
    """
    if loss == "cross_entropy":
        losses = functional.cross_entropy(widen(outputs), labels, reduction="none")
        correct = {"correct": float((outputs.argmax(1) == labels).sum())}
        if outputs.shape[1] > TOP:
            correct["correct_top5"] = float((_ahead(outputs, labels) < TOP).sum())
    else:
        correct = {}
        if loss == "squared":
            losses = 0.5 * residuals(outputs, labels).square().flatten(1).sum(1)
        else:
            losses = widen(outputs)
    total = float(losses.sum(dtype=torch.float64))
    return {"loss": total, "examples": float(len(outputs)), **correct}


def _ahead(outputs: Tensor, labels: Tensor) -> Tensor:
    """[B]: how many classes are ranked before the label; all of them where its output is NaN."""
    own = outputs.gather(1, labels[:, None])
    lower = torch.arange(outputs.shape[1], device=outputs.device) < labels[:, None]
    return (~(outputs <= own) | ((outputs == own) & lower)).sum(1)
