"""Point: the argument of a function, for losses that are functions of the parameters alone."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpcfl.errors import JobError
from hpcfl.models.base import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Point(ModelConfig):
    """A vector w [dim]; an input (h, b) [2, dim] makes 1/2 sum(h w^2) - b . w."""

    start: float = 0.0
    """The initial value of every entry of w."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Takes only inputs of shape [2, dim]."""
        if len(input_shape) != 2 or input_shape[0] != 2:
            raise JobError(
                f"model.name: point takes examples of shape (2, dim) as data.kind quadratics has "
                f"them, not {input_shape}"
            )
        return Quadratic(input_shape[1], self.start)


class Quadratic(nn.Module):
    """Each example's quadratic at the point ``w``."""

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((dim,), start))

    def forward(self, inputs: Tensor) -> Tensor:
        """Values [B] at ``w`` of the quadratics [B, 2, dim]."""
        curvature, linear = inputs.unbind(1)
        return ((0.5 * curvature * self.w - linear) * self.w).sum(1)
