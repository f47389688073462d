"""The running statistics of a model's batch normalisation as one flat vector [Q], beside its x."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfl.models.flat_vector import flatten, trained
from hpcfl.types import Vector

_KINDS = ("running_mean", "running_var")
COUNTER = "num_batches_tracked"  # ends the name of a buffer on which nothing depends


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether a layer keeps running statistics: batch and instance normalisation may."""
    return bool(getattr(layer, "track_running_stats", False))


def put_in_training(model: nn.Module, *, frozen: bool) -> None:
    """Put the model into training mode; all layers with statistics but if they are ``frozen``."""
    model.train()
    for layer in model.modules():
        if frozen and keeps_statistics(layer):
            layer.eval()


def normalises_batches(model: nn.Module) -> bool:
    """Whether a model in training mode normalises by the statistics of its batch."""
    return any(isinstance(layer, _BatchNorm) and layer.training for layer in model.modules())


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of batch normalisation that move running statistics in training, by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm)
        and not isinstance(layer, nn.SyncBatchNorm)
        and keeps_statistics(layer)
        and layer.training
    }


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """The running statistics of a model in training mode, by name, in the order of the vector."""
    return {
        f"{name}.{kind}" if name else kind: getattr(layer, kind)
        for name, layer in batch_norms(model).items()
        for kind in _KINDS
    }


def initial_statistics(model: nn.Module) -> Vector:
    """A copy of a model's running statistics [Q], in the dtype of its parameters."""
    dtype = next(iter(trained(model).values())).dtype
    return flatten(list(statistics_of(model).values())).to(dtype)


def load_statistics(model: nn.Module, vector: Vector) -> None:
    """Give a model in training mode the running statistics of a vector [Q], in new buffers."""
    own = statistics_of(model)
    pieces = vector.split_with_sizes([buffer.numel() for buffer in own.values()])
    for (name, buffer), piece in zip(own.items(), pieces, strict=True):
        _set(model, name, piece.to(buffer, copy=True))


def _set(model: nn.Module, name: str, buffer: Tensor) -> None:
    owner, _, kind = name.rpartition(".")
    setattr(model.get_submodule(owner), kind, buffer)


class RunningStatistics:
    """The running statistics of a model in training mode, whose buffers become views of a vector.

    Args:
        model: with some, on its device.
    """

    def __init__(self, model: nn.Module) -> None:
        found = statistics_of(model)
        self.names = tuple(found)
        """The names of the buffers."""
        self.sizes = tuple(buffer.numel() for buffer in found.values())
        self.initial: Vector = initial_statistics(model)
        """[Q], those that the model was made with."""
        self._current = self.initial.clone()
        self._layers = list(batch_norms(model).values())
        for name, view in self.pieces(self._current).items():
            _set(model, name, view)

    def pieces(self, vector: Vector) -> dict[str, Tensor]:
        """Views of a vector [Q], by the names of the buffers."""
        return dict(zip(self.names, vector.split_with_sizes(self.sizes), strict=True))

    def load(self, vector: Vector) -> None:
        """Let the model have these statistics."""
        self._current.copy_(vector)

    def taken(self) -> Vector:
        """A copy of those that the model has now."""
        return self._current.clone()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count the batches of the block, in buffers on which nothing depends."""
        counters = [getattr(layer, COUNTER) for layer in self._layers]
        for layer in self._layers:
            setattr(layer, COUNTER, None)
        try:
            yield
        finally:
            for layer, counter in zip(self._layers, counters, strict=True):
                setattr(layer, COUNTER, counter)
