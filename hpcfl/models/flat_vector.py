"""A model's trained parameters as one flat vector [P], and back.

Parameters that do not require a gradient are frozen: they are no part of the vector, and are kept
and moved as buffers are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor, nn

from hpcfl.types import Vector


class ParameterLayout(NamedTuple):
    """The trained parameters in a flat vector: in ``named_parameters()`` order, each row-major."""

    names: tuple[str, ...]
    shapes: tuple[Size, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(model: nn.Module) -> "ParameterLayout":
        """The layout of ``model``'s trained parameters."""
        named = trained(model)
        return ParameterLayout(
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


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's trained parameters by name, in order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def parameters(model: nn.Module) -> Vector:
    """A copy of the model's trained parameters, flat."""
    return flatten(list(trained(model).values()))


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """What no round changes: persistent buffers and frozen parameters, by name."""
    kept = model.state_dict()
    frozen = {name: p.data for name, p in model.named_parameters() if not p.requires_grad}
    return {name: buffer for name, buffer in model.named_buffers() if name in kept} | frozen


def frozen_note(model: nn.Module) -> str:
    """The number of frozen parameters, to stand behind that of the others; empty if it is 0."""
    count = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return f" and {count} frozen ones" if count else ""


def load(model: nn.Module, x: Vector) -> None:
    """Copy ``x`` into the model's trained parameters."""
    with torch.no_grad():
        views = ParameterLayout.of(model).views(x)
        for parameter, view in zip(trained(model).values(), views, strict=True):
            parameter.copy_(view)
