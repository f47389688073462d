"""Group normalisation of K clients, each with its own weights; a residual and a relu may follow.

Images are [K, B, pixels, C] in memory, channels last.  One program normalises one group of one
image: it reads the image again from the cache after the first pass, and writes its outputs once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcfl.local.triton_kernels.blocks import norm_block
from hpcfl.local.triton_kernels.launch import check_dtype, launch, packed

WARPS, STAGES = 4, 2


@triton.jit
def norm_forward(
    x, weight, bias, residual, z, mean, scale, B, eps,
    PIXELS: tl.constexpr, C: tl.constexpr, G: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """z = (x - mean) scale weight + bias, of the group; then the residual and the relu."""
    image, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = image // B
    S: tl.constexpr = C // G
    c, row = tl.arange(0, BC), tl.arange(0, BR)
    at = image * (PIXELS * C) + row[:, None] * C + g * S + c[None, :]
    total = tl.zeros((BR, BC), tl.float32)
    for r in range(0, PIXELS, BR):
        inside = (row + r < PIXELS)[:, None] & (c < S)[None, :]
        total += tl.load(x + at + r * C, mask=inside, other=0.0).to(tl.float32)
    m = tl.sum(tl.sum(total, 1), 0) / (PIXELS * S)
    total = tl.zeros((BR, BC), tl.float32)
    for r in range(0, PIXELS, BR):
        inside = (row + r < PIXELS)[:, None] & (c < S)[None, :]
        d = tl.load(x + at + r * C, mask=inside, other=0.0).to(tl.float32) - m
        d = tl.where(inside, d, 0.0)
        total += d * d
    s = 1 / tl.sqrt(tl.sum(tl.sum(total, 1), 0) / (PIXELS * S) + eps)
    tl.store(mean + image * G + g, m)
    tl.store(scale + image * G + g, s)
    w = tl.load(weight + k * C + g * S + c, mask=c < S, other=0.0)[None, :]
    b = tl.load(bias + k * C + g * S + c, mask=c < S, other=0.0)[None, :]
    for r in range(0, PIXELS, BR):
        inside = (row + r < PIXELS)[:, None] & (c < S)[None, :]
        v = tl.load(x + at + r * C, mask=inside, other=0.0).to(tl.float32)
        v = (v - m) * s * w + b
        if RESIDUAL:
            v += tl.load(residual + at + r * C, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            v = tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(z + at + r * C, v.to(z.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward(
    dz, z, x, weight, mean, scale, dx, dresidual, parts, B, K,
    PIXELS: tl.constexpr, C: tl.constexpr, G: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """The gradients of the group's inputs and residual, and this image's part of its weights'."""
    image, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = image // B
    S: tl.constexpr = C // G
    c, row = tl.arange(0, BC), tl.arange(0, BR)
    at = image * (PIXELS * C) + row[:, None] * C + g * S + c[None, :]
    m, s = tl.load(mean + image * G + g), tl.load(scale + image * G + g)
    up = tl.zeros((BR, BC), tl.float32)
    along = tl.zeros((BR, BC), tl.float32)
    for r in range(0, PIXELS, BR):
        inside = (row + r < PIXELS)[:, None] & (c < S)[None, :]
        d = tl.load(dz + at + r * C, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            # As in torch, the relu of NaN is NaN and has a gradient.
            d = tl.where(tl.load(z + at + r * C, mask=inside, other=0.0) <= 0, 0.0, d)
        h = (tl.load(x + at + r * C, mask=inside, other=0.0).to(tl.float32) - m) * s
        up += d
        along += d * h
    db, dw = tl.sum(up, 0), tl.sum(along, 0)
    place = parts + ((image % B) * 2 * K + k) * C + g * S + c
    tl.store(place, dw, mask=c < S)
    tl.store(place + K * C, db, mask=c < S)
    w = tl.load(weight + k * C + g * S + c, mask=c < S, other=0.0)
    first, second = tl.sum(db * w, 0) / (PIXELS * S), tl.sum(dw * w, 0) / (PIXELS * S)
    for r in range(0, PIXELS, BR):
        inside = (row + r < PIXELS)[:, None] & (c < S)[None, :]
        d = tl.load(dz + at + r * C, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            d = tl.where(tl.load(z + at + r * C, mask=inside, other=0.0) <= 0, 0.0, d)
        h = (tl.load(x + at + r * C, mask=inside, other=0.0).to(tl.float32) - m) * s
        if RESIDUAL:
            tl.store(dresidual + at + r * C, d.to(dresidual.dtype.element_ty), mask=inside)
        v = s * (d * w[None, :] - first - h * second)
        tl.store(dx + at + r * C, v.to(dx.dtype.element_ty), mask=inside)


def group_norm(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    residual: Tensor | None = None,
    *,
    relu: bool = False,
) -> Tensor:
    """The normalised images of K clients; relu(normalised images + residual), where there are any.

    Args:
        images: [K, B, C, ...], in any order of memory; channels last need no copy.
        weight: [K, C].
        bias: [K, C].
        groups: of channels.
        eps: added to the variances.
        residual: [K, B, C, ...], added to the normalised images.
        relu: whether it follows.

    Returns:
        [K, B, C, ...], in memory channels last, in the weights' dtype.

    Raises:
        NotImplementedError: the images are of another dtype than float32 and bfloat16.
    """
    check_dtype(images)
    shape = images.movedim(2, -1).shape
    last = (
        None if tensor is None else tensor.movedim(2, -1).reshape(*shape[:2], -1, shape[-1])
        for tensor in (images, residual)
    )
    found: Tensor = _GroupNorm.apply(*last, weight, bias, groups, eps, relu)
    return found.view(shape).movedim(-1, 2)


class _GroupNorm(torch.autograd.Function):
    """Of images and residuals [K, B, pixels, C]."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
        relu: bool,
    ) -> Tensor:
        images, weight, bias = packed(images), packed(weight), packed(bias)
        clients, examples, pixels, channels = images.shape
        z = torch.empty_like(images, dtype=weight.dtype)
        mean = weight.new_empty(clients * examples, groups)
        scale = torch.empty_like(mean)
        rows, columns = norm_block(pixels, channels // groups)
        shape = {
            "PIXELS": pixels,
            "C": channels,
            "G": groups,
            "BR": rows,
            "BC": columns,
            "RELU": relu,
            "RESIDUAL": residual is not None,
        }
        norm_forward[(clients * examples, groups)](
            images, weight, bias, images if residual is None else packed(residual), z, mean,
            scale, examples, eps, **shape, **launch(WARPS, STAGES),
        )  # fmt: skip
        ctx.save_for_backward(images, z, weight, mean, scale)
        ctx.shape, ctx.dtype = shape, None if residual is None else residual.dtype
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        images, z, weight, mean, scale = ctx.saved_tensors
        clients, examples, _, channels = images.shape
        dz, into_images = packed(grads[0]), torch.empty_like(images)
        into_residual = None if ctx.dtype is None else torch.empty_like(images, dtype=ctx.dtype)
        # Examples come first: they are then summed in the same order for every client.
        parts = weight.new_empty(examples, 2, clients, channels)
        norm_backward[(clients * examples, ctx.shape["G"])](
            dz, z, images, weight, mean, scale, into_images,
            into_images if into_residual is None else into_residual, parts, examples, clients,
            **ctx.shape, **launch(WARPS, STAGES),
        )  # fmt: skip
        into_weight, into_bias = parts.sum(0)
        return into_images, into_residual, into_weight, into_bias, None, None, None
