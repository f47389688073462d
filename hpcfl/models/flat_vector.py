"""A model's trained parameters as one flat vector [P], and back.

Parameters that do not require a gradient are frozen: they are no part of the vector, and are kept
and moved as buffers are.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hpcfl.algorithms.layout import Layout
from hpcfl.models.normalization import LAYERS
from hpcfl.types import Vector


def layout_of(model: nn.Module) -> Layout:
    """The layout of ``model``'s trained parameters."""
    named, dense = trained(model), last_dense(model)
    norms = [layer for layer in model.modules() if isinstance(layer, LAYERS)]
    return Layout(
        tuple(named),
        tuple(tuple(p.shape) for p in named.values()),
        last_dense=_names_of([dense] if dense else [], named),
        normalization=_names_of(norms, named),
    )


def _names_of(layers: Sequence[nn.Module], named: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """The names of these layers' parameters."""
    own = {id(p) for layer in layers for p in layer.parameters()}
    return tuple(name for name, p in named.items() if id(p) in own)


def last_dense(model: nn.Module) -> nn.Module | None:
    """The last dense layer with trained parameters; None where there is none."""
    dense = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.Linear) and any(p.requires_grad for p in layer.parameters())
    ]
    return dense[-1] if dense else None


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
    """Persistent buffers and frozen parameters, by name.

    No round changes them, but running statistics (``hpcfl.models.statistics``).
    """
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
        views = layout_of(model).views(x)
        for parameter, view in zip(trained(model).values(), views, strict=True):
            parameter.copy_(view)
