"""Sum losses, correct answers and the user's metrics of a model over batches of examples.

Sums over batches are rounded once, so that they do not depend on who computed which batch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from hpcfl.evaluation.metrics import totals
from hpcfl.evaluation.user_metrics import Score, UserMetric
from hpcfl.local.step import Gradient
from hpcfl.types import Batch, LossName, Vector


class Meter:
    """Computes sums over examples, without augmentation and dropout.

    They are those of ``hpcfl.evaluation.metrics``, and those of the user's metrics as "NAME 0",
    "NAME 1", ...

    Args:
        gradient: of the model.
        loss: of the data.
        classes: of the data, or None.
        metrics: the user's.
    """

    def __init__(
        self,
        gradient: Gradient,
        loss: LossName,
        classes: int | None,
        metrics: Sequence[UserMetric] = (),
    ) -> None:
        self._gradient, self._loss, self._classes, self.metrics = gradient, loss, classes, metrics

    @property
    def classifies(self) -> bool:
        """Whether there are accuracies."""
        return self._loss in ("cross_entropy", "tokens")

    def each(
        self, x: Vector, batches: Iterable[Batch], *, metrics: bool = True
    ) -> list[dict[str, float]]:
        """The sums of every batch, of the model at ``x``; with the user's metrics or without."""
        return [
            self._sums(self._gradient.predict(x, batch.inputs), batch.labels, metrics=metrics)
            for batch in batches
        ]

    def whole(
        self, x: Vector, batches: Iterable[Batch], *, metrics: bool = True
    ) -> dict[str, float]:
        """The sums over all batches; empty without batches."""
        sums = self.each(x, batches, metrics=metrics)
        return {name: rounded_sum(batch[name] for batch in sums) for name in (sums or [{}])[0]}

    def scores(self, sums: Mapping[str, float]) -> dict[str, Score]:
        """The scores of sums over all examples of a client or a set, and how many these are.

        ``loss`` and ``accuracy`` are left out where no label counts for them.
        """
        scores: dict[str, Score] = {"examples": sums["examples"]}
        if sums["examples"]:
            scores["loss"] = sums["loss"] / sums["examples"]
        if self.classifies and sums["scored"]:
            scores["accuracy"] = sums["correct"] / sums["scored"]
        for metric in self.metrics:
            own = [sums[name] for name in sum_names(metric, metric.count)]
            scores[metric.name] = metric.score(own)
        return scores

    def _sums(self, outputs: Tensor, labels: Tensor, *, metrics: bool) -> dict[str, float]:
        own = self._gradient.loss
        terms = None if own.fused else own.terms
        sums = totals(self._loss, self._classes, outputs, labels, terms)
        for metric in self.metrics if metrics else ():
            numbers = metric.sums(outputs, labels)
            sums |= dict(zip(sum_names(metric, len(numbers)), numbers, strict=True))
        return sums


def rounded_sum(numbers: Iterable[float]) -> float:
    """The sum, correctly rounded; infinite or NaN where a number or the sum is not finite."""
    kept = list(numbers)
    try:
        return math.fsum(kept)
    except (OverflowError, ValueError):  # beyond the largest double, or inf - inf
        return sum(kept)


def sum_names(metric: UserMetric, count: int) -> list[str]:
    """The names of a metric's sums."""
    return [f"{metric.name} {number}" for number in range(count)]
