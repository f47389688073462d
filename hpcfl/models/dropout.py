"""Dropout whose masks follow from a seed alone: the same ones in every executor, on every device.

The state of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) is a counter, so its n-th number is a
function of seed and n: whole masks are made at once, also those of many clients.  On a CPU
torch's dropout draws one number after the other, which takes longer for large tensors.
"""

from typing import Any

import torch
from torch import Tensor, nn


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_LEVELS = 1 << 16  # 64 random bits serve four elements of a mask


class Dropout(nn.Dropout):
    """Replaces torch's, with p rounded to a multiple of 2^-16.

    Args:
        original: torch's module; gives p, ``inplace`` and the mode.
        layer: its number in the model, so that every layer has masks of its own.
    """

    def __init__(self, original: nn.Dropout, layer: int) -> None:
        super().__init__(original.p, original.inplace)
        self.train(original.training)
        dropped = round(self.p * _LEVELS)
        self._layer = layer
        self._below = float(dropped - _LEVELS // 2 - 1)  # 16 bits up to this drop an element
        self._scale = _LEVELS / (_LEVELS - dropped) if dropped < _LEVELS else 0.0
        self.end()

    def begin(self, seed: Tensor, examples: int | None = None) -> None:
        """Begin a batch.

        Args:
            seed: 0-d int64, of its masks.
            examples: the size that the first dimension of inputs must have; None: any size.
        """
        self._seed, self._examples, self._calls = seed, examples, 0

    def end(self) -> None:
        """End a batch: its seed may be a tensor of a vmap that has ended, and must not be kept."""
        self.begin(torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        """Set elements to zero at random, and divide the others by 1 - p.

        Raises:
            NotImplementedError: the first dimension is not the batch, as a block requires.
        """
        if not self.training or self.p == 0:
            return input
        if self._examples not in (None, input.shape[0]):
            raise NotImplementedError(
                f"dropout of a tensor {tuple(input.shape)} whose first dimension is not the batch"
            )
        # Counters of different layers and calls must not overlap: 2^36 for each call of a layer.
        place = (self._layer << 48) + (self._calls << 36)
        self._calls += 1
        count = input.numel()
        counters = torch.arange(1, -(-count // 4) + 1, device=input.device).mul_(_STEP)
        words = counters + (self._seed + _signed(place * _STEP))
        mixed = _mixed(words)
        parts = mixed.view(torch.int16) if self._examples is None else _Int16.apply(mixed)  # type: ignore[no-untyped-call]
        bits = parts[:count].view(input.shape)
        kept = bits.to(torch.float32).sub_(self._below).clamp(0, 1).to(input.dtype)
        kept.mul_(self._scale)
        return input.mul_(kept) if self.inplace else input * kept


class _Int16(torch.autograd.Function):
    """The int16 [4 n] in int64 [n], also under vmap, where older versions of torch have no view."""

    @staticmethod
    def forward(words: Tensor) -> Tensor:
        return words.view(torch.int16)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], words: Tensor) -> tuple[Tensor, int]:
        return words.movedim(in_dims[0], 0).contiguous().view(torch.int16), 0


def replace_dropout(model: nn.Module) -> None:
    """Replace every ``nn.Dropout`` inside the model by a ``Dropout``."""
    made: dict[nn.Module, Dropout] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if type(child) is nn.Dropout:
                parent._modules[name] = made.setdefault(child, Dropout(child, len(made)))


def dropouts(model: nn.Module) -> list[Dropout]:
    """The ``Dropout`` modules of the model."""
    return [module for module in model.modules() if isinstance(module, Dropout)]


def _mixed(words: Tensor) -> Tensor:
    """SplitMix64's numbers of these states, which are overwritten; its shifts are unsigned."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        words.bitwise_xor_((words >> shift).bitwise_and_((1 << 64 - shift) - 1)).mul_(factor)
    return words.bitwise_xor_((words >> 31).bitwise_and_((1 << 33) - 1))
