"""Losses by name: the mean over a batch, at least in float32 whatever the outputs are."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.data.base import LossName
from hpcfl.types import Loss, Scalar


def cross_entropy(outputs: Tensor, labels: Tensor) -> Scalar:
    """Of logits [B, n] and classes [B]."""
    return functional.cross_entropy(widen(outputs), labels)


def squared(outputs: Tensor, labels: Tensor) -> Scalar:
    """Mean of sum(r^2) / 2, r = outputs - labels, both [B, targets]."""
    return 0.5 * residuals(outputs, labels).square().sum() / len(outputs)


def quadratic(outputs: Tensor, labels: Tensor) -> Scalar:
    """Of outputs [B] that are losses already; the labels are not used."""
    return widen(outputs).mean()


def residuals(outputs: Tensor, labels: Tensor) -> Tensor:
    """Outputs - labels, in float32 at least."""
    wide = widen(outputs)
    return wide - labels.to(wide.dtype).view_as(wide)


def widen(outputs: Tensor) -> Tensor:
    """Half precision, as autocast leaves it, to float32; anything wider as it is."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


LOSSES: Mapping[LossName, Loss] = {
    "cross_entropy": cross_entropy,
    "squared": squared,
    "quadratic": quadratic,
}
