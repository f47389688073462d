"""A model's parameters as one flat vector [P], and back."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor, nn

from hpcfl.types import Vector


class Layout(NamedTuple):
    """The parameters in a flat vector: in ``named_parameters()`` order, each row-major."""

    names: tuple[str, ...]
    shapes: tuple[Size, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(model: nn.Module) -> "Layout":
        """The layout of ``model``'s parameters."""
        named = dict(model.named_parameters())
        return Layout(
            tuple(named),
            tuple(p.shape for p in named.values()),
            tuple(p.numel() for p in named.values()),
        )

    @property
    def total(self) -> int:
        """P, the number of parameters."""
        return sum(self.sizes)

    def views(self, x: Vector) -> list[Tensor]:
        """Views of ``x``, one for each parameter, in order."""
        pieces = torch.split_with_sizes(x, self.sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


def flatten(tensors: Sequence[Tensor]) -> Vector:
    """Copy tensors into one vector, each row-major."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def parameters(model: nn.Module) -> Vector:
    """A copy of the model's parameters, flat."""
    return flatten(list(model.parameters()))


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """The model's persistent buffers by name: the tensors of its state dict but parameters."""
    kept = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def load(model: nn.Module, x: Vector) -> None:
    """Copy ``x`` into the model's own parameters."""
    with torch.no_grad():
        for parameter, view in zip(model.parameters(), Layout.of(model).views(x), strict=True):
            parameter.copy_(view)
