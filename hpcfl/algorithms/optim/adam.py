"""Adam and AdamW, as torch.optim has them; k = 1, 2, ... counts the steps of the state.

    m <- b1 m + (1 - b1) d,  v <- b2 v + (1 - b2) d^2;  m = v = 0 at first
    along = m / (1 - b1^k) / (sqrt(v / (1 - b2^k)) + eps)
    adam:  d + weight_decay point takes the place of d           (coupled)
    adamw: weight_decay point is added to along                  (decoupled)

Kingma, Ba. Adam: A Method for Stochastic Optimization. ICLR 2015, algorithm 1. arXiv:1412.6980;
Loshchilov, Hutter. Decoupled Weight Decay Regularization. ICLR 2019, algorithm 2, the schedule in
eta. arXiv:1711.05101
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor, float64, zeros_like

from hpcfl.algorithms.layout import Layout
from hpcfl.algorithms.optim.base import Optimizer, coupled
from hpcfl.types import Decay, NonNegative, Vector


class Moments(NamedTuple):
    m: Vector
    v: Vector
    steps: Tensor  # k, so far; 0-d float64


def zero_moments(y: Vector) -> Moments:
    """The moments before the first step."""
    return Moments(zeros_like(y), zeros_like(y), y.new_zeros((), dtype=float64))


def with_direction(moments: Moments, d: Vector, b1: float, b2: float) -> Moments:
    """The moments after a step of direction ``d``."""
    m, v, steps = moments
    return Moments(b1 * m + (1 - b1) * d, b2 * v + (1 - b2) * d * d, steps + 1)


def adaptive(moments: Moments, b1: float, b2: float, eps: float) -> Vector:
    """Adam's direction, with both moments corrected for their start at zero."""
    m, v, steps = moments
    return m / (1 - b1**steps) / ((v / (1 - b2**steps)).sqrt() + eps)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam, with the weight decay in the moments."""

    kind: Literal["adam"] = "adam"
    b1: Decay = 0.9
    """Decay of the first moment."""
    b2: Decay = 0.999
    """Decay of the second moment."""
    eps: NonNegative = 1e-8
    """Added to the root of the second moment."""

    def init(self, y: Vector, layout: Layout) -> Moments:
        return zero_moments(y)

    def step(
        self, d: Vector, point: Vector, state: Moments, decay: float, layout: Layout
    ) -> tuple[Vector, Moments]:
        after = with_direction(state, coupled(d, point, decay), self.b1, self.b2)
        return adaptive(after, self.b1, self.b2, self.eps), after


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam, with the weight decay beside the moments."""

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]  # the name of another section

    def step(
        self, d: Vector, point: Vector, state: Moments, decay: float, layout: Layout
    ) -> tuple[Vector, Moments]:
        along, after = super().step(d, point, state, 0.0, layout)
        return coupled(along, point, decay), after
