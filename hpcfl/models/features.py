"""The features of a batch: what enters the last dense layer of a model."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def inputs_of(layer: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collect what the layer is called with in the block."""
    seen: list[Tensor] = []
    if layer is None:
        yield seen
        return
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()
