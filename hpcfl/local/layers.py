"""Layers under ``vmap``: computed for many clients at once, each with its own parameters.

``torch.func.vmap`` runs a model, written for one client, on K stacked ones; this mode takes over
the few functions that vmap refuses or plays slowly.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Convolutions = Literal["grouped", "products"]


# Elements.  What is as wide, or a multiple, lies alike for every client, and leaves no rest beside
# vectors of a processor: else kernels would round one client's numbers unlike the next one's.
PAD_MULTIPLE = 64


class VmapLayers(TorchFunctionMode):
    """While it is entered inside ``vmap``, functions of layers are those of K clients.

    Args:
        convolutions: "grouped", as vmap plays them, one group a client; or batched matrix
            "products" of the images' patches, for devices whose grouped convolutions are slow.
        alike: keep every client's numbers apart from where they lie, as a CPU's kernels do not.
    """

    def __init__(self, convolutions: Convolutions, *, alike: bool) -> None:
        super().__init__()
        self._played: dict[Any, Callable[..., Any]] = {
            functional.dropout: _dropout,
            torch._VF.lstm: _lstm,
        }
        if convolutions == "products":
            self._played[torch.conv2d] = _conv2d
        if alike:
            self._played[functional.linear] = _linear

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Play ``func``, or what stands for it."""
        return self._played.get(func, func)(*args, **(kwargs or {}))


def stacked(function: Callable[..., Any], *tensors: Any) -> Any:
    """Inside ``vmap``: a function of the tensors of all clients, [K, ...] each.

    BlockGradients flow through what ``function`` does; what every client shares is expanded.
    """
    return _Stacked.apply(function, *tensors)  # type: ignore[no-untyped-call]


class _Stacked(Function):
    """The way out of ``vmap``: its rule gets the stacked tensors that vmap hides."""

    @staticmethod
    def forward(function: Callable[..., Any], *tensors: Any) -> Any:
        raise RuntimeError("a function of stacked tensors was called outside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: autograd follows what the rule does."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Callable[..., Any], *tensors: Any) -> Any:
        """Call ``function`` with the clients' dimension in front."""
        size = info.batch_size
        found = function(
            *(
                tensor
                if not isinstance(tensor, Tensor)
                else tensor.expand(size, *tensor.shape)
                if at is None
                else tensor.movedim(at, 0)
                for tensor, at in zip(tensors, in_dims[1:], strict=True)
            )
        )
        return found, (0,) * len(found) if isinstance(found, tuple) else 0


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Nothing, or a refusal: nothing says whose random numbers it would draw."""
    if training and p:
        raise NotImplementedError("torch.nn.functional.dropout; a module nn.Dropout can be")
    return input


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A dense layer."""
    found: Tensor = stacked(_dense, input, weight)
    return found if bias is None else found + bias


def _dense(inputs: Tensor, weights: Tensor) -> Tensor:
    """[K, ..., O] of inputs [K, ..., I] and weights [K, O, I]."""
    lines = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    found = _filled(lines) @ _filled(weights).transpose(1, 2)
    return found.view(*inputs.shape[:-1], weights.shape[1])


def _filled(tensors: Tensor) -> Tensor:
    """[K, M, n], n rounded up by zeros, so that each client's part lies alike; a copy."""
    rest = -tensors.shape[-1] % PAD_MULTIPLE
    if rest:
        return functional.pad(tensors, (0, rest))
    return tensors.clone(memory_format=torch.contiguous_format)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution; of one group, as a product of patches and kernels, client by client."""
    if groups != 1 or isinstance(padding, str) or _pair(dilation) != (1, 1):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    found: Tensor = stacked(_products, input, weight, bias, _pair(stride), _pair(padding))
    return found


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (*value, *value)[:2]


def _products(
    images: Tensor,
    kernels: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """[K, B, O, h, w] of images [K, B, C, H, W] and kernels [K, O, C, a, b]."""
    clients, examples = images.shape[:2]
    outputs, _, *kernel = kernels.shape[1:]
    (down, along), (tall, wide) = padding, stride
    padded = functional.pad(images, (along, along, down, down)) if any(padding) else images
    patches = padded.unfold(3, kernel[0], tall).unfold(4, kernel[1], wide)
    height, width = patches.shape[3:5]
    # [K, B h w, C a b]: whole lines of patches, so that one product serves a client's batch.
    lines = patches.permute(0, 1, 3, 4, 2, 5, 6).reshape(clients, examples * height * width, -1)
    columns = kernels.reshape(clients, outputs, -1).transpose(1, 2)
    found = lines @ columns if bias is None else torch.baddbmm(bias[:, None], lines, columns)
    # In the order of images: inside vmap a norm cannot ask for another one.
    images = found.view(clients, examples, height, width, outputs).permute(0, 1, 4, 2, 3)
    return images.clone(memory_format=torch.contiguous_format)


def _lstm(
    input: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A recurrence of nn.LSTM's own parameters: products of all clients, step after step.

    Raises:
        NotImplementedError: it goes both ways, drops between layers, projects or is packed.
    """
    each = 4 if bias else 2
    if bidirectional or (dropout and training) or len(weights) != each * layers:
        raise NotImplementedError("an LSTM that is bidirectional, drops or projects")
    sequence = input if batch_first else input.transpose(0, 1)
    hidden, cell = state
    ends = []
    for layer in range(layers):
        own = weights[each * layer : each * layer + each]
        sequence, h, c = stacked(_recurrence, sequence, hidden[layer], cell[layer], *own)
        ends.append((h, c))
    hidden, cell = (torch.stack(part) for part in zip(*ends, strict=True))
    return sequence if batch_first else sequence.transpose(0, 1), hidden, cell


def _recurrence(
    sequence: Tensor,
    hidden: Tensor,
    cell: Tensor,
    inward: Tensor,
    onward: Tensor,
    *biases: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer: [K, B, T, E] -> [K, B, T, H], and its last hidden and cell states [K, B, H]."""
    clients, examples, length, _ = sequence.shape
    # Every step's inputs in one product.
    inputs = _dense(sequence.reshape(clients, examples * length, -1), inward)
    for bias in biases:
        inputs = inputs + bias.unsqueeze(1)
    gates_in = inputs.view(clients, examples, length, -1)
    back = _filled(onward).transpose(1, 2)
    outputs = []
    for t in range(length):
        i, f, g, o = (gates_in[:, :, t] + _filled(hidden) @ back).chunk(4, 2)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs, 2), hidden, cell
