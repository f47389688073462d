"""Starting a model from given weights."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hpcfl.errors import JobError


def load_initial(model: nn.Module, path: Path) -> tuple[str, ...]:
    """Overwrite the model's parameters with those of a file; the names of what was skipped.

    A .npy is one flat vector of all parameters in ``named_parameters()`` order, each row-major.
    A .safetensors is a state dict and may be partial: parameters that it lacks, entries that the
    model lacks, and a last layer of another shape (a head for other classes) are skipped.

    Raises:
        JobError: the file is missing or damaged, or does not fit the model.
    """
    parameters = dict(model.named_parameters())
    if path.suffix == ".npy":
        _fill(parameters, _vector(path, sum(p.numel() for p in parameters.values())))
        return ()
    if path.suffix != ".safetensors":
        raise JobError(f"model.init: {path}: expected a .npy or a .safetensors file")
    try:
        entries = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise JobError(f"model.init: {path}: not a readable .safetensors file: {error}") from error
    return _copy(parameters, entries, path)


def _vector(path: Path, expected: int) -> Tensor:
    """The flat vector in a .npy."""
    try:
        vector = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise JobError(f"model.init: {path}: not a readable .npy file: {error}") from error
    if vector.dtype.kind != "f" or vector.shape != (expected,):
        raise JobError(
            f"model.init: {path}: {vector.dtype} of shape {vector.shape}, the model has "
            f"{expected} parameters and takes floats of shape ({expected},)"
        )
    if not np.isfinite(vector).all():
        raise JobError(
            f"model.init: {path}: entry {int(np.argmin(np.isfinite(vector)))} is not finite"
        )
    return torch.from_numpy(vector.astype(np.float64))


@torch.no_grad()
def _fill(parameters: Mapping[str, nn.Parameter], vector: Tensor) -> None:
    """Copy consecutive pieces of the vector into the parameters."""
    pieces = torch.split_with_sizes(vector, [p.numel() for p in parameters.values()])
    for parameter, piece in zip(parameters.values(), pieces, strict=True):
        parameter.copy_(piece.view_as(parameter))


@torch.no_grad()
def _copy(
    parameters: Mapping[str, nn.Parameter], entries: Mapping[str, Tensor], path: Path
) -> tuple[str, ...]:
    """Copy the entries that fit, refuse those that should but do not, name the others."""
    head = list(parameters)[-1].rpartition(".")[0]  # the layer of the last parameter
    fitting = []
    for name, parameter in parameters.items():
        if name not in entries:
            continue
        entry = entries[name]
        if entry.shape == parameter.shape:
            if not torch.isfinite(entry).all():
                raise JobError(f"model.init: {path}: {name} is not finite")
            fitting.append(name)
        elif name.rpartition(".")[0] != head:
            raise JobError(
                f"model.init: {path}: {name} has shape {tuple(entry.shape)}, the model's has "
                f"{tuple(parameter.shape)}"
            )
    if not fitting:
        raise JobError(
            f"model.init: {path}: nothing fits the model; it holds {_some(entries)}, "
            f"the model {_some(parameters)}"
        )
    for name in fitting:
        parameters[name].copy_(entries[name])
    return tuple(dict.fromkeys(name for name in (*parameters, *entries) if name not in fitting))


def _some(names: Mapping[str, Tensor]) -> str:
    """The first few names."""
    shown = list(names)[:3]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "") or "nothing"
