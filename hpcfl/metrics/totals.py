"""What a batch adds to an evaluation: sums, so that batches and ranks can be added up."""

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.data.base import LossName
from hpcfl.tasks.losses import residuals, widen


def totals(loss: LossName, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Sums over the batch: ``loss`` and ``examples``, of a classification also ``correct``.

    Losses are computed per example in float32 or wider and added in float64.

    Args:
        loss: which loss.
        outputs: of the model, [B, ...].
        labels: [B] classes, [B, targets], or unused.
    """
    if loss == "cross_entropy":
        losses = functional.cross_entropy(widen(outputs), labels, reduction="none")
        correct = {"correct": float((outputs.argmax(1) == labels).sum())}
    else:
        correct = {}
        if loss == "squared":
            losses = 0.5 * residuals(outputs, labels).square().flatten(1).sum(1)
        else:
            losses = widen(outputs)
    total = float(losses.sum(dtype=torch.float64))
    return {"loss": total, "examples": float(len(outputs)), **correct}
