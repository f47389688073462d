"""Muon: matrices move along their orthogonalised momentum, all else by AdamW.

    matrices (parameters of two or more dimensions, as rows x the rest):
        M <- beta M + (1 - beta) d,  M = 0 at first
        Q  = (1 - beta) d + beta M, or M                           (nesterov, or not)
        along = matrix_lr sqrt(max(1, rows / columns)) NS5(Q)
    others: AdamW's with b1 = 0.9, b2 = 0.95, eps = 1e-10
    and weight_decay point is added to along                       (decoupled)
    NS5: X = Q / (norm(Q) + 1e-7), transposed if rows > columns; five times
         A = X X',  X <- 3.4445 X + (-4.7750 A + 2.0315 A A) X

Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein. Muon: An optimizer for hidden layers in neural
networks. 2024. https://kellerjordan.github.io/posts/muon/

The form is that of the authors' code, but in the job's precision (theirs: bfloat16) and for every
matrix, the first and last layers too.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

from torch import Tensor, zeros_like
from torch.nn.functional import pad

from hpcfl.algorithms.layout import Layout
from hpcfl.algorithms.optim.adam import Moments, adaptive, with_direction, zero_moments
from hpcfl.algorithms.optim.base import Optimizer, coupled
from hpcfl.types import Decay, Positive, Vector

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ADAM = (0.9, 0.95)
_MULTIPLE = 16


class State(NamedTuple):
    momentum: Vector  # [P]; unused where a parameter is no matrix
    others: Moments


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Momentum orthogonalised by Newton-Schulz steps."""

    kind: Literal["muon"] = "muon"
    beta: Decay = 0.95
    """Momentum of matrices."""
    nesterov: bool = True
    """Whether matrices move along (1 - beta) d + beta M instead of M."""
    matrix_lr: Positive = 1.0
    """Factor on the learning rate of matrices."""

    def init(self, y: Vector, layout: Layout) -> State:
        return State(zeros_like(y), zero_moments(y))

    def step(
        self, d: Vector, point: Vector, state: State, decay: float, layout: Layout
    ) -> tuple[Vector, State]:
        after = State(
            momentum_after(state.momentum, d, self.beta), with_direction(state.others, d, *_ADAM)
        )
        along = orthogonalized(
            layout, after, d, beta=self.beta, nesterov=self.nesterov, matrix_lr=self.matrix_lr
        )
        return coupled(along, point, decay), after


def momentum_after(momentum: Vector, d: Vector, beta: float) -> Vector:
    """M after a step of direction ``d``."""
    return beta * momentum + (1 - beta) * d


def orthogonalized(
    layout: Layout, state: State, d: Vector, *, beta: float, nesterov: bool, matrix_lr: float
) -> Vector:
    """Muon's direction [P] of the state after a step of direction ``d``."""
    q = (1 - beta) * d + beta * state.momentum if nesterov else state.momentum
    others = adaptive(state.others, *_ADAM, 1e-10)
    pieces = [
        matrix_lr * max(1.0, rows(matrix) / columns(matrix)) ** 0.5 * newton_schulz(matrix)
        if matrix.ndim > 1
        else other
        for matrix, other in zip(layout.views(q), layout.views(others), strict=True)
    ]
    return layout.flat(pieces)


def rows(matrix: Tensor) -> int:
    """The first dimension of a parameter."""
    return matrix.shape[0]


def columns(matrix: Tensor) -> int:
    """The product of the other dimensions."""
    return prod(matrix.shape[1:])


def newton_schulz(matrix: Tensor) -> Tensor:
    """NS5 of a parameter as a matrix, in the parameter's shape."""
    a, b, c = _COEFFICIENTS
    height, width = rows(matrix), columns(matrix)
    # Zeros change no number.  In a block a client's products would else be rounded by its slot: the
    # kernels take rows that do not fill whole vectors of the processor in another way.
    x = pad(matrix.reshape(height, width), (0, -width % _MULTIPLE, 0, -height % _MULTIPLE))
    tall = height > width
    x = x / (x.reshape(-1).norm() + 1e-7)
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if tall else x
    orthogonal: Tensor = x[:height, :width].reshape(matrix.shape)
    return orthogonal
