"""Gather the scores of single clients on rank 0, as rows of the run's clients.csv."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from hpcfl.comm.base import Comm
from hpcfl.evaluation.measure import Meter
from hpcfl.evaluation.user_metrics import Score
from hpcfl.runs.client_table import ClientRow

WHOLE_SET = -1
"""The client of a row about a whole test or validation set."""
_TOGETHER = 1024  # clients of one all-reduce, so that tables of vectors fit in memory


@dataclass(frozen=True)
class ClientRows:
    """Makes the rows of one evaluation."""

    meter: Meter
    comm: Comm
    device: torch.device
    round: int
    """Rounds completed."""
    write: Callable[[Sequence[ClientRow]], None]
    """Gets the rows on rank 0, in the order of the clients."""

    def of_clients(
        self, model: str, data: str, known: Mapping[int, Mapping[str, Score]], clients: int
    ) -> None:
        """Collective: write the rows of all clients that have scores.

        Args:
            model: which model of a client was scored: "global", "local" or "personal".
            data: on which of its examples: "holdout", "test" or "train".
            known: of this rank's clients, their scores by name.
            clients: the number of all clients.
        """
        width = 1 + len(self._columns())
        for begin in range(0, clients, _TOGETHER):
            table = torch.zeros(min(_TOGETHER, clients - begin), width, dtype=torch.float64)
            for client in known.keys() & range(begin, begin + len(table)):
                numbers = [1.0, *self._numbers(known[client])]
                table[client - begin] = torch.tensor(numbers, dtype=torch.float64)
            table += 0.0  # -0.0 becomes 0.0, on one rank as on several
            if self.comm.size > 1:
                table = table.to(self.device)
            self.comm.allreduce_sum(table)  # exact: a row is not 0 on one rank only
            if self.comm.rank == 0:
                self.write(
                    [
                        self._row(model, data, begin + offset, numbers)
                        for offset, (present, *numbers) in enumerate(table.tolist())
                        if present
                    ]
                )

    def of_set(self, data: str, scores: Mapping[str, Score]) -> None:
        """Write a row about a whole set, on rank 0, if a metric has several numbers.

        Its other scores are in the log.
        """
        if self.comm.rank == 0 and any(metric.width > 1 for metric in self.meter.metrics):
            self.write([self._row("global", data, WHOLE_SET, self._numbers(scores))])

    @property
    def _names(self) -> list[str]:
        """The names of the scores."""
        own = [metric.name for metric in self.meter.metrics]
        return ["examples", "loss", *(["accuracy"] if self.meter.classifies else []), *own]

    def _columns(self) -> list[str]:
        """The columns of the scores; a metric with several numbers has NAME.0, NAME.1, ..."""
        widths = {metric.name: metric.width for metric in self.meter.metrics}
        return [
            column
            for name in self._names
            for column in (
                [f"{name}.{k}" for k in range(widths[name])] if widths.get(name, 1) > 1 else [name]
            )
        ]

    def _numbers(self, scores: Mapping[str, Score]) -> list[float]:
        """The scores in the order of the columns, NaN where there is none."""
        found = [scores.get(name, math.nan) for name in self._names]
        return [n for each in found for n in (each if isinstance(each, tuple) else (each,))]

    def _row(self, model: str, data: str, client: int, numbers: Sequence[float]) -> ClientRow:
        values = zip(self._columns(), numbers, strict=True)
        return {
            "round": self.round,
            "model": model,
            "data": data,
            "client": client,
            **{name: None if math.isnan(value) else value for name, value in values},
            "examples": int(numbers[0]),
        }
