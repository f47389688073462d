"""Measure a model on batches."""

import math
from collections.abc import Iterable

from hpcfl.evaluation.metrics import totals
from hpcfl.local.step import Gradient
from hpcfl.types import Batch, LossName, Vector


class Meter:
    """Computes the sums of ``hpcfl.evaluation.metrics``, without augmentation and dropout."""

    def __init__(self, gradient: Gradient, loss: LossName) -> None:
        self._gradient, self._loss = gradient, loss

    def each(self, x: Vector, batches: Iterable[Batch]) -> list[dict[str, float]]:
        """The sums of every batch, of the model at ``x``."""
        return [
            totals(self._loss, self._gradient.predict(x, batch.inputs), batch.labels)
            for batch in batches
        ]

    def whole(self, x: Vector, batches: Iterable[Batch]) -> dict[str, float]:
        """The sums over all batches; empty without batches."""
        sums = self.each(x, batches)
        return {name: math.fsum(batch[name] for batch in sums) for name in (sums or [{}])[0]}
