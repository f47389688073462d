"""Initialise a model from a file of weights."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from hpcfl.errors import JobError
from hpcfl.models.flat_vector import buffers, layout_of
from hpcfl.models.normalization import STATISTICS
from hpcfl.models.weights import read_weights

_COUNTER = "num_batches_tracked"  # of batch normalisation; nothing depends on it


def load_initial(
    model: nn.Module, path: Path, layers: Literal["all", "backbone"] = "all"
) -> tuple[str, ...]:
    """Overwrite the model's weights by those of a file; return the names that were skipped.

    A .npy is one flat vector of all trained parameters in ``named_parameters()`` order, each
    row-major.
    Any other file holds tensors by name and may be partial: parameters that it lacks, entries that
    the model lacks, and a last layer of another shape (a head for other classes) are skipped, and
    so is the last layer for ``layers="backbone"``.  Running statistics are never skipped.

    Raises:
        JobError: the file is missing or damaged, or does not fit the model.
    """
    found = read_weights(path)
    entries = _cut(found, model, path) if isinstance(found, Tensor) else found
    own: dict[str, Tensor] = {**dict(model.named_parameters()), **buffers(model)}
    *_, last = dict(model.named_parameters())
    head = [name for name in own if _layer(name) == _layer(last)]
    fitting = list(_fitting(own, entries, head, layers, path))
    if not fitting:
        alone = layers == "backbone" and len(head) == len(own)
        raise JobError(
            f"model.init: {path}: nothing fits the model; it holds {_some(entries)}; "
            f"the model has {_some(own)}"
            + ("; its last layer is all that the model has" if alone else "")
        )
    with torch.no_grad():
        for name in fitting:
            own[name].copy_(entries[name])
    return _skipped((*own, *entries), [*fitting, *_other_names(model, fitting)])


def _other_names(model: nn.Module, names: Collection[str]) -> list[str]:
    """Further names of the parameters with these names: of weights that layers share."""
    every = dict(model.named_parameters(remove_duplicate=False))
    known = {id(every[name]) for name in names if name in every}
    return [name for name, parameter in every.items() if id(parameter) in known]


def _cut(vector: Tensor, model: nn.Module, path: Path) -> dict[str, Tensor]:
    """The parameters in a flat vector."""
    layout = layout_of(model)
    if len(vector) != layout.total:
        raise JobError(
            f"model.init: {path}: a vector of shape ({len(vector)},), the model has "
            f"{layout.total} parameters"
        )
    if not torch.isfinite(vector).all():
        at = int(torch.isfinite(vector).int().argmin())
        raise JobError(f"model.init: {path}: entry {at} is not finite")
    return dict(zip(layout.names, layout.views(vector), strict=True))


def _fitting(
    own: Mapping[str, Tensor],
    entries: Mapping[str, Tensor],
    head: Collection[str],
    layers: Literal["all", "backbone"],
    path: Path,
) -> Iterator[str]:
    """The names to copy; refuses entries that should fit but do not."""
    for name, tensor in own.items():
        if layers == "backbone" and name in head:
            continue
        if name not in entries:
            if name.endswith(STATISTICS):
                raise JobError(
                    f"model.init: {path}: holds no {name}, and batch normalisation takes its "
                    "statistics from there; name a state dict that has them, or set norm: group"
                )
            continue
        entry = entries[name]
        if entry.shape != tensor.shape:
            if name in head:
                continue
            raise JobError(
                f"model.init: {path}: {name} has shape {tuple(entry.shape)}, the model's has "
                f"{tuple(tensor.shape)}"
            )
        if entry.is_floating_point() != tensor.is_floating_point():
            raise JobError(
                f"model.init: {path}: {name} is {entry.dtype}, the model's is {tensor.dtype}"
            )
        if not torch.isfinite(entry).all():
            raise JobError(f"model.init: {path}: {name} is not finite")
        if not torch.isfinite(entry.to(tensor.dtype)).all():
            raise JobError(
                f"model.init: {path}: {name} has numbers up to {entry.abs().max():.3g}, beyond the "
                f"model's {str(tensor.dtype).removeprefix('torch.')}"
            )
        yield name


def _skipped(names: Iterable[str], fitting: Collection[str]) -> tuple[str, ...]:
    """The names that were not copied; all running statistics as one entry."""
    left = dict.fromkeys(name for name in names if name not in fitting)
    layers = {_layer(name) for name in left if name.endswith(STATISTICS)}
    plain = [name for name in left if not name.endswith((*STATISTICS, _COUNTER))]
    return (*plain, f"the running statistics of {len(layers)} layers") if layers else tuple(plain)


def _layer(name: str) -> str:
    """The layer that a parameter belongs to."""
    return name.rpartition(".")[0]


def _some(tensors: Mapping[str, Tensor]) -> str:
    """The first few names and shapes."""
    every = [f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items()]
    return ", ".join(every[:3]) + (", ..." if len(every) > 3 else "") or "nothing"
