"""Flatten images for a dense layer, with a gradient in their memory format."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def flat(images: Tensor) -> Tensor:
    """Images [B, C, H, W] as rows [B, C H W], like ``flatten(1)``.

    The gradient has the images' memory format: with another one, torch's pooling would convert its
    whole channels-last input twice.
    """
    rows: Tensor = _Flat.apply(images)  # type: ignore[no-untyped-call]
    return rows


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
    def backward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.view(ctx.shape).contiguous(memory_format=ctx.format)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], images: Tensor) -> tuple[Tensor, int]:
        """The rows of several clients; inside a block, formats do not change."""
        (at,) = in_dims
        return images.movedim(at, 0).flatten(2), 0
