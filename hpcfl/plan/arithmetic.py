"""Count the floating-point operations of a model."""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from hpcfl.runner.components import Components


def recurrent_operations(inputs: Sequence[int], weights: Iterable[Sequence[int]]) -> int:
    """Floating-point operations of the matrix products of recurrent layers.

    Args:
        inputs: the shape of what they read: features last, the steps of all examples before.
        weights: shapes; every step multiplies with each matrix. Vectors are biases.
    """
    return 2 * prod(inputs[:-1]) * sum(prod(shape) for shape in weights if len(shape) > 1)


def _mkldnn_layer(
    inputs: Sequence[int], of_inputs: Sequence[int], of_state: Sequence[int], *_: Any, **__: Any
) -> int:
    """The operations of a layer, from the shapes of its arguments."""
    return recurrent_operations(inputs, (of_inputs, of_state))


def _cudnn_layers(
    inputs: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any
) -> int:
    """The operations of all layers at once, from the shapes of their arguments."""
    return recurrent_operations(inputs, weights)


def _backward(forward: Callable[..., int]) -> Callable[..., int]:
    """Two products for each of the outputs': the gradients of its two factors."""
    return lambda *args, **kwargs: 2 * forward(*args, **kwargs)


# What FlopCounterMode does not know: recurrent layers that a library computes as a whole.
RECURRENT = {
    torch.ops.aten.mkldnn_rnn_layer: _mkldnn_layer,
    torch.ops.aten.mkldnn_rnn_layer_backward: _backward(_mkldnn_layer),
    torch.ops.aten._cudnn_rnn: _cudnn_layers,
    torch.ops.aten._cudnn_rnn_backward: _backward(_cudnn_layers),
}


def forward_operations(components: Components) -> int:
    """Floating-point operations of an example's outputs in the model."""
    from torch.utils.flop_counter import FlopCounterMode  # imports triton where there is one

    data = components.dataset
    inputs: Tensor = data.transform(data.sample(1), components.x0.dtype, None)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=RECURRENT) as counter:
        components.model(inputs)
    total: int = counter.get_total_flops()
    return total
