"""F1 scores of the labels of a multi-label task, 2 tp / (2 tp + fp + fn) of each label.

A bit is said to be 1 where its logit is above 0.  A label that no example has, and that is said of
none, scores 0, as in scikit-learn.
"""

import torch
from torch import Tensor

from hpcfl.evaluation.user_metrics import Metric
from hpcfl.models.losses import as_targets


class F1ByLabel(Metric):
    """The F1 score of each label, [t]."""

    def sums(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """[2 t]: of each label the bits that are 1 and said to be; then those of both, added.

        Raises:
            ValueError: the labels are no bits.
        """
        if labels.dtype != torch.bool:
            raise ValueError(f"labels are {labels.dtype}, expected bits, booleans [B, t]")
        said = as_targets(outputs) > 0
        return torch.cat([(said & labels).sum(0), said.sum(0) + labels.sum(0)])

    def score(self, sums: Tensor) -> float | Tensor:
        """The score of each label."""
        hits, ones = sums.chunk(2)
        return 2 * hits / ones.clamp(min=1)


class F1(F1ByLabel):
    """Macro F1: the mean over the labels of their F1 scores."""

    def score(self, sums: Tensor) -> float | Tensor:
        """The mean score."""
        return float(torch.as_tensor(super().score(sums)).mean())
