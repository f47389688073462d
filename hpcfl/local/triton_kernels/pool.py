"""relu of the largest of 2x2 pixels, of K clients, with one byte an output for the backward pass.

torch keeps the place of each largest pixel in eight bytes, and passes over the outputs again for
relu.  Images are [K, B, H, W, C] in memory, channels last.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcfl.local.triton_kernels.launch import check_dtype, launch, packed

SIZE = 1024  # outputs, or pixels, of a program
WARPS, STAGES = 4, 1
_NONE = tl.constexpr(4)  # no pixel has the gradient: relu cuts it off


@triton.jit
def pool_forward(
    x, y, places, TOTAL,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """y = relu(the largest pixel of each square); places: which one it was, the first if several.

    As torch's, also of values that are not numbers: one of them is the largest.
    """
    P: tl.constexpr = H // 2
    Q: tl.constexpr = W // 2
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = i < TOTAL
    c, pixel = i % C, i // C
    q, p, b = pixel % Q, pixel // Q % P, pixel // (P * Q)
    at = x + ((b * H + 2 * p) * W + 2 * q) * C + c
    best = tl.load(at, mask=mask, other=0.0)
    place = tl.zeros((SIZE,), tl.int32)
    for n in tl.static_range(1, 4):
        value = tl.load(at + (n // 2 * W + n % 2) * C, mask=mask, other=0.0)
        larger = (value > best) | (value != value)
        best, place = tl.where(larger, value, best), tl.where(larger, n, place)
    cut = best <= 0
    tl.store(y + i, tl.where(cut, 0.0, best), mask=mask)
    tl.store(places + i, tl.where(cut, _NONE, place).to(tl.uint8), mask=mask)


@triton.jit
def pool_backward(
    g, places, dx, TOTAL,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """dx of every pixel: the gradient of its square's output, if it was the largest, else 0."""
    P: tl.constexpr = H // 2
    Q: tl.constexpr = W // 2
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    c, pixel = i % C, i // C
    w, h, b = pixel % W, pixel // W % H, pixel // (H * W)
    mask = i < TOTAL
    inside = mask & (h < 2 * P) & (w < 2 * Q)  # an odd side's last pixels are in no square
    at = ((b * P + h // 2) * Q + w // 2) * C + c
    place = tl.load(places + at, mask=inside, other=_NONE).to(tl.int32)
    chosen = inside & (place == h % 2 * 2 + w % 2)
    tl.store(dx + i, tl.load(g + at, mask=chosen, other=0.0), mask=mask)


def pooled_relu(images: Tensor) -> Tensor:
    """relu(max_pool2d(images, 2)) of K clients.

    Args:
        images: [K, B, C, H, W], in any order of memory; channels last need no copy.

    Returns:
        [K, B, C, H // 2, W // 2], in memory channels last, in the images' dtype.

    Raises:
        NotImplementedError: the images are of another dtype than float32 and bfloat16.
    """
    check_dtype(images)
    outputs: Tensor = _PooledRelu.apply(images.permute(0, 1, 3, 4, 2))
    return outputs.permute(0, 1, 4, 2, 3)


class _PooledRelu(torch.autograd.Function):
    """[K, B, H // 2, W // 2, C] of images [K, B, H, W, C]."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        images = packed(images)
        *before, height, width, channels = images.shape
        y = images.new_empty(*before, height // 2, width // 2, channels)
        places = torch.empty_like(y, dtype=torch.uint8)
        ctx.sizes = {"H": height, "W": width, "C": channels, "SIZE": SIZE}
        pool_forward[(triton.cdiv(y.numel(), SIZE),)](
            images, y, places, y.numel(), **ctx.sizes, **launch(WARPS, STAGES)
        )
        ctx.save_for_backward(places)
        ctx.shape = images.shape
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (places,), g = ctx.saved_tensors, packed(grads[0])
        dx = g.new_empty(ctx.shape)
        pool_backward[(triton.cdiv(dx.numel(), SIZE),)](
            g, places, dx, dx.numel(), **ctx.sizes, **launch(WARPS, STAGES)
        )
        return dx
