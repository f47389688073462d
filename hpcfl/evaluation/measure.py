"""Sum losses, correct answers and the user's metrics of a model over batches of examples.

Sums over batches are rounded once, so that they do not depend on who computed which batch.  The
sums of a batch stay on the device: the host reads those of all batches at once, and a GPU goes on
with the next batch meanwhile.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import Tensor

from hpcfl.evaluation.metrics import Scoring, totals
from hpcfl.evaluation.user_metrics import Score, UserMetric
from hpcfl.local.gradient import Gradient
from hpcfl.types import ANSWERED, Batch, Vector

Place = TypeVar("Place")
READ_CLIENTS = 1024  # whose sums the host reads at once, and which are on the device till then


class Meter:
    """Computes sums over examples, without augmentation and dropout.

    They are those of ``hpcfl.evaluation.metrics``, and those of the user's metrics as "NAME 0",
    "NAME 1", ...

    Args:
        gradient: of the model.
        scoring: of the data.
        metrics: the user's.
    """

    def __init__(
        self,
        gradient: Gradient,
        scoring: Scoring,
        metrics: Sequence[UserMetric] = (),
    ) -> None:
        self._gradient, self.scoring, self.metrics = gradient, scoring, metrics

    @property
    def classifies(self) -> bool:
        """Whether there are accuracies."""
        return self.scoring.loss in ANSWERED

    def each(
        self, x: Vector, batches: Iterable[Batch], *, metrics: bool = True
    ) -> list[dict[str, float]]:
        """The sums of every batch, of the model at ``x``; with the user's metrics or without."""
        return self._read(self._rows(x, batches, metrics=metrics), metrics=metrics)

    def whole(
        self, x: Vector, batches: Iterable[Batch], *, metrics: bool = True
    ) -> dict[str, float]:
        """The sums over all batches; empty without batches."""
        return self.of_clients([0], lambda _: x, lambda _: batches, metrics=metrics)[0]

    def of_clients(
        self,
        clients: Sequence[Place],
        model: Callable[[Place], Vector | None],
        batches: Callable[[Place], Iterable[Batch]],
        *,
        metrics: bool = True,
    ) -> dict[Place, dict[str, float]]:
        """For each client that has a model, its sums over all batches; empty without batches.

        Models are asked for in turn; a client with several sets of examples has a place for each.
        """
        found = {}
        for begin in range(0, len(clients), READ_CLIENTS):
            rows = {}
            for client in clients[begin : begin + READ_CLIENTS]:
                x = model(client)
                if x is not None:
                    rows[client] = self._rows(x, batches(client), metrics=metrics)
            read = iter(self._read(list(chain(*rows.values())), metrics=metrics))
            for client, own in rows.items():
                sums = list(islice(read, len(own)))
                found[client] = {
                    name: rounded_sum(batch[name] for batch in sums) for name in (sums or [{}])[0]
                }
        return found

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

    def _rows(self, x: Vector, batches: Iterable[Batch], *, metrics: bool) -> list[Tensor]:
        """The sums of every batch, [k] in float64 on the device."""
        return [
            self._row(self._gradient.predict(x, batch.inputs), batch.labels, metrics=metrics)
            for batch in batches
        ]

    def _row(self, outputs: Tensor, labels: Tensor, *, metrics: bool) -> Tensor:
        own = self._gradient.loss
        terms = None if own.fused else own.terms
        sums = torch.stack([*totals(self.scoring, outputs, labels, terms).values()])
        users = [metric.sums(outputs, labels) for metric in self.metrics] if metrics else []
        return torch.cat([sums, *users]) if users else sums

    def _read(self, rows: Sequence[Tensor], *, metrics: bool) -> list[dict[str, float]]:
        """The sums of batches by name; the only place where the host waits for them."""
        if not rows:
            return []
        keys = [*self.scoring.names]
        for metric in self.metrics if metrics else ():
            keys += sum_names(metric, metric.count)
        return [dict(zip(keys, row, strict=True)) for row in torch.stack(list(rows)).tolist()]


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
