"""The gradient that hooks call in a local step, see ``Grad``."""

from torch import Tensor

from hpcfl.algorithms.facts import Forward, LossTerms
from hpcfl.errors import BrokenRuleError
from hpcfl.local.gradient import Gradient
from hpcfl.types import Batch, Vector


class OneAtATime:
    """Refuses calls of ``grad`` inside the function that makes the terms of a loss.

    The parameters would be others when the gradient is computed.
    """

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        self._inside = False

    def check(self) -> None:
        """Raise BrokenRuleError inside such a function."""
        if self._inside:
            raise BrokenRuleError(
                "grad is called inside the function of a loss; call grad and grad.forward before"
            )

    def guarded(self, terms: LossTerms) -> LossTerms:
        """The same function, inside which ``check`` raises."""

        def inside(forward: Forward) -> Tensor:
            self._inside = True
            try:
                return terms(forward)
            finally:
                self._inside = False

        return inside


class BatchGradient:
    """The gradient of one step's batch: see ``Grad``, which a hook may call several times."""

    __slots__ = ("_batch", "_calls", "_gradient", "_seed", "loss", "statistics")

    def __init__(self, gradient: Gradient, batch: Batch, seed: int) -> None:
        self._gradient, self._batch, self._seed = gradient, batch, seed
        self._calls = OneAtATime()
        self.loss: Tensor | None = None  # of the job, at the point of the first call
        self.statistics: Vector | None = None  # [Q], which the first call moves; or None

    def __call__(self, point: Vector, loss: LossTerms | None = None) -> Vector:
        """The gradient at ``point``."""
        self._calls.check()
        moved = self._gradient.statistics if self.loss is None else None
        if moved is not None and self.statistics is not None:
            moved.load(self.statistics)
        if loss is None:
            value, grad = self._gradient.stochastic(point, self._batch, self._seed)
        else:
            terms = self._calls.guarded(loss)
            value, grad = self._gradient.of_terms(point, self._batch, self._seed, terms)
        if moved is not None:
            self.statistics = moved.taken()
        if self.loss is None:
            self.loss = value
        return grad

    def forward(self, point: Vector) -> Forward:
        """What the model makes of the batch at ``point``, without gradient."""
        self._calls.check()
        return self._gradient.forward(point, self._batch, self._seed)
