"""Count the floating-point operations of a model."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfl.runner.components import Components

_MATMULS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}  # the position of the left factor


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of matrix products, convolutions and LSTMs, which are nearly all."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _MATMULS:
            self.total += 2 * out.numel() * args[_MATMULS[name]].shape[-1]
        elif name in ("convolution", "_convolution", "mkldnn_convolution"):
            self.total += 2 * out.numel() * prod(args[1].shape[1:])
        elif name == "mkldnn_rnn_layer":  # inputs, weights of the inputs and of the state
            self.total += recurrent_operations(args[0].shape, [w.shape for w in args[1:3]])
        return out


def recurrent_operations(inputs: Sequence[int], weights: Iterable[Sequence[int]]) -> int:
    """Floating-point operations of the matrix products of recurrent layers.

    Args:
        inputs: the shape of what they read: features last, the steps of all examples before.
        weights: shapes; every step multiplies with each matrix. Vectors are biases.
    """
    return 2 * prod(inputs[:-1]) * sum(prod(shape) for shape in weights if len(shape) > 1)


def forward_operations(components: Components) -> int:
    """Floating-point operations of an example's outputs in the model."""
    data = components.dataset
    inputs: Tensor = data.transform(data.sample(1), components.x0.dtype, None)
    counter = _Counter()
    with torch.no_grad(), counter:
        components.model(inputs)
    return counter.total
