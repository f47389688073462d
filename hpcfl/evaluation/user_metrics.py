"""Metrics of the user's own, which a job names by their dotted paths (``evaluate.metrics``).

A metric sees the model's outputs and the labels of one batch at a time.  What it returns is summed
exactly over batches and ranks, and batches are the same on any number of ranks, so its scores have
the same bits on all.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import isabstract
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hpcfl.comm.base import Comm
from hpcfl.errors import BrokenRuleError, defined
from hpcfl.runs.score_names import metric_name
from hpcfl.user_code.accepts import Accepts
from hpcfl.user_code.find_object import find_object

Score = float | tuple[float, ...]
"""A number, or several, such as one for each class."""


class Metric(ABC):
    """A score that is made of sums over examples, such as an F1 score of counts for each class."""

    @abstractmethod
    def sums(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Sum over the examples of a batch.

        Args:
            outputs: of the model, [B, ...], on the device.
            labels: [B, ...].

        Returns:
            [k], as many numbers for every batch.
        """

    @abstractmethod
    def score(self, sums: Tensor) -> float | Tensor:
        """The score of the sums over all examples, [k] in float64 on the CPU.

        A tensor of several numbers needs ``evaluate.clients: table``.
        """


METRIC = Accepts(
    expected="a function of outputs and labels of your own, or a class derived from hpcfl.Metric",
    base=Metric,
    functions=True,
)


class UserMetric:
    """A ``Metric``, or a function of outputs and labels that returns a number for each example.

    Args:
        path: its dotted path; the last part is its name in the log.
        found: the function, or the class derived from ``Metric``.

    Raises:
        BrokenRuleError: it is neither.
        Exception: whatever the class raises.
    """

    def __init__(self, path: str, found: Any) -> None:
        self.path, self.name = path, metric_name(path)
        self.count = 0
        """How many sums it has; 0 before the first batch."""
        self.width = 0
        """How many numbers its score has; 0 before the first one."""
        self._metric: Metric | None = None
        if isinstance(found, type) and issubclass(found, Metric):
            if isabstract(found):
                lacks = ", ".join(sorted(found.__abstractmethods__))
                raise BrokenRuleError(f"cannot be used, it does not define {lacks}")
            self._metric = found()
        elif isinstance(found, type) or not callable(found):
            raise BrokenRuleError(
                f"is {found!r:.80}, expected a function of outputs and labels, or a class derived "
                "from hpcfl.Metric"
            )
        self.function: Callable[..., Any] = self._metric.sums if self._metric else found

    def sums(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The sums over a batch; of a function, its numbers' sum and the number of examples.

        Returns:
            [k] in float64 on the device of the outputs.

        Raises:
            BrokenRuleError: the metric returns something else than it should, or changes what it
                is handed.
            Exception: whatever the metric raises.
        """
        given = outputs, labels
        versions = [tensor._version for tensor in given]
        with torch.no_grad():
            made = self.function(outputs, labels)
        if [tensor._version for tensor in given] != versions:
            raise self._broken("changes its outputs or labels in place; make a new tensor")
        examples, per_example = len(outputs), self._metric is None
        shape = f"[{examples}], a number for each example" if per_example else "[k], sums"
        if not isinstance(made, Tensor) or made.dim() != 1 or made.is_complex():
            raise self._broken(f"returns {_shown(made)}; expected a tensor {shape}")
        if per_example:
            if len(made) != examples:
                raise self._broken(f"returns {_shown(made)}; expected a tensor {shape}")
            self.count = 2
            total = made.sum(dtype=torch.float64).to(outputs.device)
            return torch.stack([total, torch.full_like(total, examples)])
        if self.count not in (0, len(made)):
            raise self.differing("sums", len(made), self.count)
        self.count = len(made)
        return made.to(outputs.device, torch.float64)

    def score(self, sums: Sequence[float]) -> Score:
        """The score of the sums over all examples; of a tensor its numbers, row by row.

        Raises:
            BrokenRuleError: it is no number, or it has another number of them than before.
            Exception: whatever the metric raises.
        """
        if self._metric is None:
            self.width = 1
            total, examples = sums
            return total / examples
        found: Any = self._metric.score(torch.tensor(sums, dtype=torch.float64))
        if isinstance(found, Tensor) and found.numel() and not found.is_complex():
            numbers = tuple(found.detach().to("cpu", torch.float64).flatten().tolist())
        elif isinstance(found, int | float):
            numbers = (float(found),)
        else:
            raise BrokenRuleError(
                f"{self.name}.score returns {_shown(found)}; expected a number",
                defined(type(self._metric).score),
            )
        if self.width not in (0, len(numbers)):
            raise self.differing("numbers", len(numbers), self.width)
        self.width = len(numbers)
        return numbers if len(numbers) > 1 else numbers[0]

    def differing(
        self, what: str, count: int, other: int, *, collective: bool = False
    ) -> BrokenRuleError:
        """The error of different numbers of sums or scores.

        Args:
            what: "sums" of a batch, or the "numbers" of a score.
            count: of one batch or score.
            other: of the other.
            collective: whether every rank raises it.
        """
        if what == "sums":
            rule = f"returns {count} sums of a batch, and {other} of another"
            return self._broken(rule, collective=collective)
        rule = f"has a score of {count} numbers, and one of {other}"
        place = defined(type(self._metric).score) if self._metric else defined(self.function)
        return BrokenRuleError(f"{self.name} {rule}", place, collective=collective)

    def _broken(self, rule: str, *, collective: bool = False) -> BrokenRuleError:
        return BrokenRuleError(f"{self.name} {rule}", defined(self.function), collective=collective)


def agree(metrics: Sequence[UserMetric], what: Literal["sums", "numbers"], comm: Comm) -> None:
    """Collective: let all ranks know how many sums, or numbers of a score, each metric has.

    A rank without a batch, or without a client, learns it from the others.

    Raises:
        BrokenRuleError: on all ranks: two ranks have different numbers.
    """
    if not metrics:
        return
    name = {"sums": "count", "numbers": "width"}[what]
    counts = [getattr(metric, name) for metric in metrics]
    negated = [-count if count else -np.inf for count in counts]  # for the smallest
    found = comm.allreduce_max(np.array([*counts, *negated], dtype=np.float64))
    for metric, most, least in zip(metrics, found, -found[len(metrics) :], strict=False):
        if least < most:
            raise metric.differing(what, int(least), int(most), collective=True)
        setattr(metric, name, int(most))


def load_metrics(paths: Sequence[str]) -> list[UserMetric]:
    """Import the metrics that a job names, once more: each holder has objects of its own.

    Raises:
        Exception: whatever the import raises.
    """
    return [UserMetric(path, find_object(path, METRIC)) for path in paths]


def _shown(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor {list(found.shape)} of {str(found.dtype).removeprefix('torch.')}"
    return f"{found!r:.60}"
