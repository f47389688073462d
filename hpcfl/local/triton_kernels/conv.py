"""Convolutions of K clients, each with its own kernels, as implicit matrix products.

Images are [K, B, H, W, C] in memory, channels last.  Nothing but inputs, outputs and gradients is
written: no patches.  Every sum has an order that the table of blocks fixes, and nothing is added
atomically, so that a client's bits depend neither on its slot nor on the other clients.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcfl.local.triton_kernels.blocks import Tile, convolution_blocks
from hpcfl.local.triton_kernels.launch import INTERPRETED, check_dtype, launch, packed, precision


@triton.jit
def conv_forward(
    x, w, bias, y, B,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    P: tl.constexpr, Q: tl.constexpr, TAPS: tl.constexpr, ACROSS: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """y[m, n] = sum over taps t and channels c of x[pixel(m) + t, c] w[n, t, c]."""
    k = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    M = B * P * Q
    b, h0, w0 = m // (P * Q), m // Q % P * SH - PH, m % Q * SW - PW
    base = x + k * B * (H * W * C)
    start = ((b * H + h0) * W + w0) * C
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for r in range(0, TAPS * C, INNER):
        i = r + tl.arange(0, INNER)
        t, c = i // C, i % C
        dh, dw = t // ACROSS, t % ACROSS
        inside = (m < M)[:, None] & (i < TAPS * C)[None, :]
        if PH > 0 or PW > 0:
            row, col = h0[:, None] + dh[None, :], w0[:, None] + dw[None, :]
            inside &= (row >= 0) & (row < H) & (col >= 0) & (col < W)
        at = start[:, None] + ((dh * W + dw) * C + c)[None, :]
        patch = tl.load(base + at, mask=inside, other=0.0)
        kernel = tl.load(
            w + k * (N * TAPS * C) + n[None, :] * (TAPS * C) + i[:, None],
            mask=(n < N)[None, :] & (i < TAPS * C)[:, None],
            other=0.0,
        )
        if WIDEN:
            patch, kernel = patch.to(tl.float32), kernel.to(tl.float32)
        sums = tl.dot(patch, kernel, sums, input_precision=PRECISION)
    if BIAS:
        sums += tl.load(bias + k * N + n, mask=n < N, other=0.0)[None, :]
    at = k * M * N + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def conv_input_gradient(
    g, w, dx, B,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    P: tl.constexpr, Q: tl.constexpr, TAPS: tl.constexpr, ACROSS: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """dx[pixel, c] = sum over taps t and outputs o of g[pixel - t, o] w[t, c, o]."""
    k = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    M = B * H * W
    b, h, v = m // (H * W), m // W % H + PH, m % W + PW
    base = g + k * B * (P * Q * N)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for r in range(0, TAPS * N, INNER):
        i = r + tl.arange(0, INNER)
        t, o = i // N, i % N
        row, col = h[:, None] - (t // ACROSS)[None, :], v[:, None] - (t % ACROSS)[None, :]
        inside = (m < M)[:, None] & (i < TAPS * N)[None, :] & (row >= 0) & (col >= 0)
        if SH > 1 or SW > 1:
            inside &= (row % SH == 0) & (col % SW == 0)
            row, col = row // SH, col // SW
        inside &= (row < P) & (col < Q)
        at = ((b[:, None] * P + row) * Q + col) * N + o[None, :]
        grads = tl.load(base + at, mask=inside, other=0.0)
        kernel = tl.load(
            w + k * (TAPS * C * N) + (t * C * N + o)[:, None] + n[None, :] * N,
            mask=(n < C)[None, :] & (i < TAPS * N)[:, None],
            other=0.0,
        )
        if WIDEN:
            grads, kernel = grads.to(tl.float32), kernel.to(tl.float32)
        sums = tl.dot(grads, kernel, sums, input_precision=PRECISION)
    at = k * M * C + m[:, None].to(tl.int64) * C + n[None, :]
    tl.store(dx + at, sums.to(dx.dtype.element_ty), mask=(m < M)[:, None] & (n < C)[None, :])


@triton.jit
def conv_kernel_gradient(
    x, g, dw, dbias, B, K,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    P: tl.constexpr, Q: tl.constexpr, TAPS: tl.constexpr, ACROSS: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BIAS: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """dw[s, o, t, c] = sum over the s-th part of all outputs m of g[m, o] x[pixel(m) + t, c]."""
    k = (tl.program_id(2) // SPLIT).to(tl.int64)
    part = tl.program_id(2) % SPLIT
    o = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    t, c = n // C, n % C
    dh, dv = t // ACROSS, t % ACROSS
    M = B * P * Q
    size = tl.cdiv(tl.cdiv(M, SPLIT), INNER) * INNER
    images, outputs = x + k * B * (H * W * C), g + k * M * N
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for r in range(part * size, tl.minimum(part * size + size, M), INNER):
        m = r + tl.arange(0, INNER)
        grads = tl.load(
            outputs + m[None, :] * N + o[:, None],
            mask=(m < M)[None, :] & (o < N)[:, None],
            other=0.0,
        )
        b, h0, w0 = m // (P * Q), m // Q % P * SH - PH, m % Q * SW - PW
        inside = (m < M)[:, None] & (n < TAPS * C)[None, :]
        if PH > 0 or PW > 0:
            row, col = h0[:, None] + dh[None, :], w0[:, None] + dv[None, :]
            inside &= (row >= 0) & (row < H) & (col >= 0) & (col < W)
        at = (((b * H + h0) * W + w0) * C)[:, None] + ((dh * W + dv) * C + c)[None, :]
        patch = tl.load(images + at, mask=inside, other=0.0)
        if WIDEN:
            grads, patch = grads.to(tl.float32), patch.to(tl.float32)
        sums = tl.dot(grads, patch, sums, input_precision=PRECISION)
        if BIAS:
            total += tl.sum(grads.to(tl.float32), 1)
    place = (part * K + k) * N + o
    mask = (o < N)[:, None] & (n < TAPS * C)[None, :]
    tl.store(dw + place[:, None] * (TAPS * C) + n[None, :], sums, mask=mask)
    if BIAS:
        if tl.program_id(1) == 0:
            tl.store(dbias + place, total, mask=o < N)


def convolution(
    images: Tensor,
    kernels: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """The convolutions of K clients.

    Args:
        images: [K, B, C, H, W], in any order of memory; channels last need no copy.
        kernels: [K, N, C, a, b].
        bias: [K, N].
        stride: of rows and columns.
        padding: by zeros, of rows and columns.

    Returns:
        [K, B, N, P, Q], in memory channels last, in the images' dtype; sums are of float32.

    Raises:
        NotImplementedError: the images are of another dtype than float32 and bfloat16.
    """
    check_dtype(images)
    outputs: Tensor = _Convolution.apply(
        images.permute(0, 1, 3, 4, 2), kernels, bias, stride, padding
    )
    return outputs.permute(0, 1, 4, 2, 3)


class _Convolution(torch.autograd.Function):
    """[K, B, P, Q, N] of images [K, B, H, W, C] and kernels [K, N, C, a, b]."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        kernels: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        clients, examples, height, width, channels = images.shape
        outputs, _, a, b = kernels.shape[1:]
        p = (height + 2 * padding[0] - a) // stride[0] + 1
        q = (width + 2 * padding[1] - b) // stride[1] + 1
        images = packed(images)
        own = packed(kernels.permute(0, 1, 3, 4, 2).to(images.dtype))
        added = own if bias is None else packed(bias)
        y = images.new_empty(clients, examples, p, q, outputs)
        shape = {
            "H": height,
            "W": width,
            "C": channels,
            "N": outputs,
            "P": p,
            "Q": q,
            "TAPS": a * b,
            "ACROSS": b,
            "SH": stride[0],
            "SW": stride[1],
            "PH": padding[0],
            "PW": padding[1],
            "PRECISION": precision(),
            # Triton's interpreter multiplies the bits of bfloat16, as if they were integers.
            "WIDEN": INTERPRETED,
        }
        blocks = convolution_blocks(channels, outputs, a * b, images.element_size())
        conv_forward[_grid(blocks.forward, examples * p * q, outputs, clients)](
            images, own, added, y, examples, BIAS=bias is not None, **shape,
            **_options(blocks.forward),
        )  # fmt: skip
        ctx.save_for_backward(images, kernels)
        ctx.shape, ctx.blocks, ctx.bias = shape, blocks, bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (images, kernels), shape, blocks = ctx.saved_tensors, ctx.shape, ctx.blocks
        clients, examples, height, width, channels = images.shape
        outputs, _, a, b = kernels.shape[1:]
        g = packed(grads[0])
        into_images = into_kernels = into_bias = None
        if ctx.needs_input_grad[0]:
            own = packed(kernels.permute(0, 3, 4, 2, 1).to(images.dtype))
            into_images = torch.empty_like(images)
            conv_input_gradient[_grid(blocks.inputs, examples * height * width, channels, clients)](
                g, own, into_images, examples, **shape, **_options(blocks.inputs)
            )
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            # Parts come first: they are then summed in the same order for every client.
            parts = g.new_empty(blocks.split, clients, outputs, a, b, channels, dtype=torch.float32)
            sums = g.new_empty(blocks.split, clients, outputs, dtype=torch.float32)
            grid = _grid(blocks.kernels, outputs, a * b * channels, clients * blocks.split)
            conv_kernel_gradient[grid](
                images, g, parts, sums, examples, clients, BIAS=ctx.bias, SPLIT=blocks.split,
                **shape, **_options(blocks.kernels),
            )  # fmt: skip
            into_kernels = parts.sum(0).permute(0, 1, 4, 2, 3)
            into_bias = sums.sum(0) if ctx.bias else None
        return into_images, into_kernels, into_bias, None, None


def _grid(tile: Tile, rows: int, columns: int, clients: int) -> tuple[int, int, int]:
    return triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns), clients


def _options(tile: Tile) -> dict[str, Any]:
    sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns, "INNER": tile.inner}
    return sizes | launch(tile.warps, tile.stages)
