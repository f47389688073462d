"""Measure a model on batches."""

import math
from collections.abc import Iterable

from hpcfl.data.base import LossName
from hpcfl.evaluation.metrics import totals
from hpcfl.local.step import Gradient
from hpcfl.types import Batch, Vector


class Meter:
    """Sums over examples, see ``hpcfl.evaluation.metrics``: no augmentation, no dropout."""

    def __init__(self, gradient: Gradient, loss: LossName) -> None:
        self._gradient, self._loss = gradient, loss

    def each(self, x: Vector, batches: Iterable[Batch]) -> list[dict[str, float]]:
        """Of every batch, by the model at ``x``."""
        return [
            totals(self._loss, self._gradient.predict(x, batch.inputs), batch.labels)
            for batch in batches
        ]

    def whole(self, x: Vector, batches: Iterable[Batch]) -> dict[str, float]:
        """Of all batches together; empty where there are none."""
        found = self.each(x, batches)
        return {name: math.fsum(one[name] for one in found) for name in (found or [{}])[0]}
