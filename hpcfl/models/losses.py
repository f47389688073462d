"""Losses by name: the mean over a batch, at least in float32 whatever the outputs are.

``tokens``, of texts, is the mean over the labels of a batch that are no padding, whichever
sentences they stand in, as TensorFlow Federated trains: in a batch a longer sentence counts for
more.  What is said of a client's whole data (its full gradient, its loss in an evaluation) is
likewise the mean over all its labels, which its batches enter by how many each has (``terms``);
in the mean over clients a client still counts by its examples, the sentences.

With ``counts`` [B], 1 or 0, the mean is over the examples that have a 1, which may be none.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.data.base import LossName
from hpcfl.data.vocabulary import PAD
from hpcfl.types import Loss, Scalar


def cross_entropy(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """Of logits [B, n] and classes [B]."""
    if counts is None:
        return functional.cross_entropy(widen(outputs), labels)
    return _mean(_surprise(widen(outputs), labels), counts)


def tokens(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """Of logits [B, T, n] and classes [B, T], or [B, n] and [B], where class 0 is padding.

    Zero, with a gradient of zero, where all is padding.
    """
    if counts is not None:
        real = (labels != PAD) & (counts.view(-1, *[1] * (labels.dim() - 1)) > 0)
        return (_surprise(widen(outputs), labels) * real).sum() / real.sum().clamp(min=1)
    flat = labels.flatten().long()
    total = functional.cross_entropy(
        widen(outputs).flatten(0, -2), flat, ignore_index=PAD, reduction="sum"
    )
    return total / (flat != PAD).sum().clamp(min=1)


def squared(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """Mean of sum(r^2) / 2, r = outputs - labels, both [B, targets]."""
    if counts is not None:
        return 0.5 * _mean(residuals(outputs, labels).square().flatten(1).sum(1), counts)
    return 0.5 * residuals(outputs, labels).square().sum() / len(outputs)


def quadratic(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """Of outputs [B] that are losses already; the labels are not used."""
    return widen(outputs).mean() if counts is None else _mean(widen(outputs), counts)


def _surprise(logits: Tensor, classes: Tensor) -> Tensor:
    """-log p of every label.

    Without an index into the logits: of many clients' at once, that would be a scatter on the way
    back, which a CUDA graph cannot have.
    """
    others = torch.arange(logits.shape[-1], device=logits.device) != classes.unsqueeze(-1)
    return logits.logsumexp(-1) - logits.masked_fill(others, 0.0).sum(-1)


def _mean(losses: Tensor, counts: Tensor) -> Scalar:
    """Of losses [B], over those that count."""
    return (losses * counts).sum() / counts.sum().clamp(min=1)


def terms(loss: LossName, labels: Tensor) -> int:
    """How many terms the mean over a batch with these labels has."""
    return int((labels != PAD).sum()) if loss == "tokens" else len(labels)


def residuals(outputs: Tensor, labels: Tensor) -> Tensor:
    """Outputs - labels, in float32 at least."""
    wide = widen(outputs)
    return wide - labels.to(wide.dtype).view_as(wide)


def widen(outputs: Tensor) -> Tensor:
    """Half precision, as autocast leaves it, to float32; anything wider as it is."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


LOSSES: Mapping[LossName, Loss] = {
    "cross_entropy": cross_entropy,
    "tokens": tokens,
    "squared": squared,
    "quadratic": quadratic,
}
