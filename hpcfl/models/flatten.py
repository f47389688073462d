"""From images to lines, on the way into a dense layer."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def flat(images: Tensor) -> Tensor:
    """Images [B, C, H, W] as lines [B, C H W], as ``flatten(1)`` lays them.

    The gradient comes back in the images' own memory format: behind channels last, torch's pooling
    would change the format of its whole input twice to take another one.
    """
    lines: Tensor = _Flat.apply(images)  # type: ignore[no-untyped-call]
    return lines


class _Flat(Function):
    @staticmethod
    def forward(images: Tensor) -> Tensor:
        return images.flatten(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        (images,) = inputs
        ctx.shape = images.shape
        last = images.is_contiguous(memory_format=torch.channels_last)
        ctx.format = torch.channels_last if last else torch.contiguous_format

    @staticmethod
    def backward(ctx: Any, lines: Tensor) -> Tensor:
        return lines.view(ctx.shape).contiguous(memory_format=ctx.format)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], images: Tensor) -> tuple[Tensor, int]:
        """Of several clients: plainly."""
        (at,) = in_dims
        return images.movedim(at, 0).flatten(2), 0
