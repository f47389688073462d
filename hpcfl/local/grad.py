"""The gradient that hooks call in a local step."""

from typing import Protocol

from torch import Tensor

from hpcfl.algorithms.facts import Forward, LossTerms
from hpcfl.errors import BrokenRuleError
from hpcfl.types import Vector


class BatchFunction(Protocol):
    """A model's loss on the batch of one local step, as a function of its flat vector."""

    def gradient(
        self, point: Vector, terms: LossTerms | None, statistics: Vector | None
    ) -> tuple[Tensor, Vector, Vector | None]:
        """The job's mean loss, the gradient [P], and the running statistics after the batch.

        Args:
            point: [P].
            terms: of the loss whose mean has the gradient; None: those of the job's loss.
            statistics: [Q], before the batch; None where none are moved.
        """
        ...

    def forward(self, point: Vector) -> Forward:
        """What the model makes of the batch at ``point``, without gradient."""
        ...


class StepGrad:
    """``hpcfl.algorithms.facts.Grad`` of one client in one local step.

    The first call keeps the loss and moves the running statistics.  Calls inside the function that
    makes the terms of a loss are refused: the parameters would be others when the gradient is
    computed.
    """

    __slots__ = ("_batch", "_in_terms", "loss", "statistics")

    def __init__(self, batch: BatchFunction, statistics: tuple[Vector, ...] = ()) -> None:
        self._batch, self._in_terms = batch, False
        self.loss: Tensor | None = None
        """Of the job, at the point of the first call."""
        self.statistics = statistics
        """[Q], which the first call moves; empty where none are moved."""

    def __call__(self, point: Vector, loss: LossTerms | None = None) -> Vector:
        """The gradient at ``point``."""
        self._require_outside()
        terms = None if loss is None else self._marked(loss)
        if self.loss is not None:
            _, gradient, _ = self._batch.gradient(point, terms, None)
            return gradient
        (before,) = self.statistics or (None,)
        self.loss, gradient, after = self._batch.gradient(point, terms, before)
        if after is not None:
            self.statistics = (after,)
        return gradient

    def forward(self, point: Vector) -> Forward:
        """What the model makes of the batch at ``point``, without gradient."""
        self._require_outside()
        return self._batch.forward(point)

    def _require_outside(self) -> None:
        """Refuse a call inside the function that makes the terms of a loss."""
        if self._in_terms:
            raise BrokenRuleError(
                "grad is called inside the function of a loss; call grad and grad.forward before"
            )

    def _marked(self, terms: LossTerms) -> LossTerms:
        """The same function, inside which calls are refused."""

        def inside(forward: Forward) -> Tensor:
            self._in_terms = True
            try:
                return terms(forward)
            finally:
                self._in_terms = False

        return inside
