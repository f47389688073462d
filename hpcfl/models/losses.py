"""Losses by name: the mean over a batch, in float32 or wider also of bfloat16 outputs.

``tokens``, for texts, is the mean over all labels of a batch but padding, as in TensorFlow
Federated: a longer sentence has a larger weight in its batch.  The full gradient of a client and
its loss in an evaluation are means over all its labels too, so that its batches are weighted by
their numbers of labels (``TermLoss.count``); in the mean over clients, a client is weighted by its
examples, the sentences.

With ``counts`` [B], 1 for an example and 0 for padding of the batch, the mean is over the examples;
it is 0 where there are none.  The block executor passes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hpcfl.types import Loss, LossName, Scalar

NO_CLASS = torch.iinfo(torch.int64).min
"""torch's ``ignore_index`` where no label is left out: its default, -100, could be one."""


def cross_entropy(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """The loss of logits [B, n] and classes [B]."""
    if counts is None:
        return functional.cross_entropy(widen(outputs), labels, ignore_index=NO_CLASS)
    return _mean(label_losses(widen(outputs), labels), counts)


def tokens(
    outputs: Tensor, labels: Tensor, counts: Tensor | None = None, *, padding: int | None = None
) -> Scalar:
    """The loss of logits [B, ..., n] and classes [B, ...], without labels that are ``padding``.

    Zero, with a gradient of zero, where all is padding.
    """
    if counts is not None:
        real = _counted(labels, counts, padding)
        return (label_losses(widen(outputs), labels) * real).sum() / real.sum().clamp(min=1)
    logits, flat = widen(outputs).flatten(0, -2), labels.flatten().long()
    if padding is None:
        return functional.cross_entropy(logits, flat, ignore_index=NO_CLASS)
    total = functional.cross_entropy(logits, flat, ignore_index=padding, reduction="sum")
    return total / (flat != padding).sum().clamp(min=1)


def squared(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """Mean of sum(r^2) / 2, r = outputs - labels, both [B, targets]; outputs [B] for one target."""
    if counts is not None:
        return 0.5 * _mean(residuals(outputs, labels).square().sum(1), counts)
    return 0.5 * residuals(outputs, labels).square().sum() / len(outputs)


def bits(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """Mean of the binary cross-entropies of t logits and booleans, both [B, t], summed over t."""
    if counts is not None:
        return _mean(bit_losses(widen(outputs), labels), counts)
    return bit_losses(widen(outputs), labels).mean()


def quadratic(outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
    """The mean of outputs [B] that are losses already; the labels are not used."""
    return widen(outputs).mean() if counts is None else _mean(widen(outputs), counts)


def label_losses(logits: Tensor, classes: Tensor) -> Tensor:
    """-log p of every label.

    By a mask instead of an index into the logits: under vmap the gradient of an index is a scatter,
    which cannot be captured in a CUDA graph.
    """
    others = torch.arange(logits.shape[-1], device=logits.device) != classes.unsqueeze(-1)
    return logits.logsumexp(-1) - logits.masked_fill(others, 0.0).sum(-1)


def bit_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p of the labels of every example [B], of logits and booleans [B, t]."""
    flat = as_targets(logits)
    targets = labels.to(flat.dtype).view_as(flat)
    return functional.binary_cross_entropy_with_logits(flat, targets, reduction="none").sum(1)


def _mean(losses: Tensor, counts: Tensor) -> Scalar:
    """The mean of losses [B] over those whose count is 1."""
    return (losses * counts).sum() / counts.sum().clamp(min=1)


def _counted(labels: Tensor, counts: Tensor | None, padding: int | None) -> Tensor:
    """[B, ...], which labels count: those of examples that do, but padding."""
    real = torch.ones_like(labels, dtype=torch.bool) if padding is None else labels != padding
    if counts is not None:
        real = real & (counts.view(-1, *[1] * (labels.dim() - 1)) > 0)
    return real


def residuals(outputs: Tensor, labels: Tensor) -> Tensor:
    """Outputs - labels [B, targets], in float32 at least; outputs [B] are of one target."""
    wide = as_targets(widen(outputs))
    return wide - labels.to(wide.dtype).view_as(wide)


def as_targets(outputs: Tensor) -> Tensor:
    """Outputs [B, ...] as [B, targets]; [B] are of one target."""
    return outputs.flatten(1) if outputs.dim() > 1 else outputs.unsqueeze(1)


def widen(outputs: Tensor) -> Tensor:
    """Half precision, the result of autocast, to float32; wider types unchanged."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def _squared_terms(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.5 * residuals(outputs, labels).square().sum(1)


def _outputs(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs


@dataclass(frozen=True)
class TermLoss:
    """A loss whose terms hooks of an algorithm may see, and replace by their own.

    Args:
        name: of the data's loss: the mean of ``tokens`` is over labels, of others over examples.
        terms: of outputs in float32 or wider and labels: one an example [B], or of ``tokens`` one a
            label [B, ...].
        fused: computes their mean at once.
        padding: the label that does not count, see ``Dataset.padding``.
    """

    name: LossName
    terms: Callable[[Tensor, Tensor], Tensor]
    fused: Loss | None = None
    padding: int | None = None

    def __call__(self, outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
        """The mean over the examples whose ``counts`` [B] is 1."""
        if self.fused is not None:
            return self.fused(outputs, labels, counts)
        return self.mean(self.terms(widen(outputs), labels), labels, counts)

    def mean(self, terms: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
        """The mean of these terms: over the labels of ``tokens`` that count, else over examples."""
        if self.name != "tokens":
            return terms.mean() if counts is None else _mean(terms, counts)
        real = _counted(labels, counts, self.padding)
        # Not times 0: a term of padding need not be finite.
        return terms.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)

    def count(self, labels: Tensor) -> int:
        """The number of terms in the mean over a batch with these labels."""
        if self.name != "tokens":
            return len(labels)
        return labels.numel() if self.padding is None else int((labels != self.padding).sum())


def label_mask(outputs: Tensor, labels: Tensor, loss: LossName) -> Tensor:
    """A mask of the outputs' shape, True at the label; [0] where the labels are no classes."""
    if loss not in ("cross_entropy", "tokens"):
        return outputs.new_zeros(0, dtype=torch.bool)
    return torch.arange(outputs.shape[-1], device=outputs.device) == labels.unsqueeze(-1)


LOSSES: Mapping[LossName, TermLoss] = {
    "cross_entropy": TermLoss("cross_entropy", label_losses, cross_entropy),
    "tokens": TermLoss("tokens", label_losses, tokens),
    "squared": TermLoss("squared", _squared_terms, squared),
    "bits": TermLoss("bits", bit_losses, bits),
    "quadratic": TermLoss("quadratic", _outputs, quadratic),
}
"""By their names; every label counts."""


def loss_of(name: LossName, padding: int | None) -> TermLoss:
    """The loss of data with this padding, which that of ``tokens`` alone may have."""
    if padding is None:
        return LOSSES[name]
    return replace(LOSSES[name], fused=partial(tokens, padding=padding), padding=padding)
