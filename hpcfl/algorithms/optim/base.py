"""The interface of an optimiser of local steps.

    o <- init(y)                                      # when a client's round begins
    along, o <- step(d, point, o)                     # d: the direction, without weight decay
    y <- start - scale eta along                      # by the executor

With ``local.keep_optimizer`` o is kept in the client's state between its rounds, and ``init`` is
called before the first of them alone, at the initial model.  An optimiser of a user's own derives
from ``Optimizer``; its fields are the keys of ``local.optimizer.keys``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hpcfl.algorithms.layout import Layout
from hpcfl.types import Section, Vector


@dataclass(frozen=True, kw_only=True)
class Optimizer(Section, ABC):
    """Pure functions for one client, which run under ``torch.func.vmap`` too.

    They change nothing in place, branch on no tensor's value, and draw nothing.
    """

    @abstractmethod
    def init(self, y: Vector, layout: Layout) -> Any:
        """The state before the first local step from ``y`` [P]: a tree of tensors.

        Kept ones are of float32, float64, bfloat16 or int64.
        """

    @abstractmethod
    def step(
        self, d: Vector, point: Vector, state: Any, decay: float, layout: Layout
    ) -> tuple[Vector, Any]:
        """The vector [P] along which y moves downhill, and the new state.

        Args:
            d: [P], the direction of the algorithm, of gradients that are clipped already.
            point: [P], where it was taken, and where the weight decay is.
            state: after the step before.
            decay: ``local.weight_decay``; an optimiser couples it (adds it to d) or not.
            layout: of the vectors.
        """


@dataclass(frozen=True)
class Descent:
    """A job's optimiser, its weight decay, and the layout of its model."""

    optimizer: Optimizer
    decay: float
    layout: Layout

    def init(self, y: Vector) -> Any:
        """The state before the first local step from ``y``."""
        return self.optimizer.init(y, self.layout)

    def step(self, d: Vector, point: Vector, state: Any) -> tuple[Vector, Any]:
        """The vector along which y moves downhill, and the new state."""
        return self.optimizer.step(d, point, state, self.decay, self.layout)


def coupled(d: Vector, point: Vector, decay: float) -> Vector:
    """The direction with weight decay as a gradient of (decay / 2) norm(point)^2."""
    return d.add(point, alpha=decay) if decay else d
