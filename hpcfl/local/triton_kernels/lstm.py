"""The recurrence of an LSTM layer for K clients, each with its own weights.

The inputs of all time steps are one product before it, and the gradient of the recurrent weights is
one after it: the kernel keeps what is sequential, h W^T and the gates.  One program computes all
time steps of a few examples of one client, so that it waits for no other.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcfl.local.triton_kernels.blocks import LSTM_EXAMPLES, LSTM_WARPS, hidden_block
from hpcfl.local.triton_kernels.launch import check_dtype, launch, packed, precision


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _product(left, weights, square, sums, PRECISION: tl.constexpr):
    return tl.dot(left, tl.load(weights, mask=square, other=0.0), sums, input_precision=PRECISION)


@triton.jit
def lstm_forward(
    gates, w, h0, c0, hs, cs, acts, B, T,
    H: tl.constexpr, HP: tl.constexpr, BB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Hidden states hs, cell states cs and activated gates of all time steps."""
    k = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.arange(0, HP)
    inside = (row < B)[:, None] & (n < H)[None, :]
    square = (n < H)[:, None] & (n < H)[None, :]
    at, at4 = row[:, None] * H + n[None, :], row[:, None] * (4 * H) + n[None, :]
    h = tl.load(h0 + k * B * H + at, mask=inside, other=0.0)
    c = tl.load(c0 + k * B * H + at, mask=inside, other=0.0)
    wk = w + k * 4 * H * H + n[None, :] * H + n[:, None]  # [in, out]
    for t in range(T):
        base = gates + (k * T + t) * B * 4 * H + at4
        i = tl.load(base, mask=inside, other=0.0)
        f = tl.load(base + H, mask=inside, other=0.0)
        g = tl.load(base + 2 * H, mask=inside, other=0.0)
        o = tl.load(base + 3 * H, mask=inside, other=0.0)
        i = tl.sigmoid(_product(h, wk, square, i, PRECISION))
        f = tl.sigmoid(_product(h, wk + H * H, square, f, PRECISION))
        g = _tanh(_product(h, wk + 2 * H * H, square, g, PRECISION))
        o = tl.sigmoid(_product(h, wk + 3 * H * H, square, o, PRECISION))
        c = f * c + i * g
        h = tl.where(inside, o * _tanh(c), 0.0)
        step = (k * T + t) * B * H + at
        tl.store(hs + step, h, mask=inside)
        tl.store(cs + step, c, mask=inside)
        act = acts + (k * T + t) * B * 4 * H + at4
        tl.store(act, i, mask=inside)
        tl.store(act + H, f, mask=inside)
        tl.store(act + 2 * H, g, mask=inside)
        tl.store(act + 3 * H, o, mask=inside)


@triton.jit
def lstm_backward(
    dhs, dlast, acts, cs, c0, w, dgates, dh0, dc0, B, T,
    H: tl.constexpr, HP: tl.constexpr, BB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the gates before their activations, from the last time step to the first."""
    k = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BB + tl.arange(0, BB)
    n = tl.arange(0, HP)
    inside = (row < B)[:, None] & (n < H)[None, :]
    square = (n < H)[:, None] & (n < H)[None, :]
    at, at4 = row[:, None] * H + n[None, :], row[:, None] * (4 * H) + n[None, :]
    dh = tl.zeros((BB, HP), tl.float32)
    dc = tl.load(dlast + k * B * H + at, mask=inside, other=0.0)
    wk = w + k * 4 * H * H + n[:, None] * H + n[None, :]  # [out, in]
    for back in range(T):
        t = T - 1 - back
        act = acts + (k * T + t) * B * 4 * H + at4
        out = dgates + (k * T + t) * B * 4 * H + at4
        step = (k * T + t) * B * H + at
        i = tl.load(act, mask=inside, other=0.0)
        f = tl.load(act + H, mask=inside, other=0.0)
        g = tl.load(act + 2 * H, mask=inside, other=0.0)
        o = tl.load(act + 3 * H, mask=inside, other=0.0)
        if t > 0:
            before = tl.load(cs + step - B * H, mask=inside, other=0.0)
        else:
            before = tl.load(c0 + k * B * H + at, mask=inside, other=0.0)
        dh += tl.load(dhs + step, mask=inside, other=0.0)
        tc = _tanh(tl.load(cs + step, mask=inside, other=0.0))
        dc += dh * o * (1 - tc * tc)
        di, df = dc * g * i * (1 - i), dc * before * f * (1 - f)
        dg, do = dc * i * (1 - g * g), dh * tc * o * (1 - o)
        tl.store(out, di, mask=inside)
        tl.store(out + H, df, mask=inside)
        tl.store(out + 2 * H, dg, mask=inside)
        tl.store(out + 3 * H, do, mask=inside)
        dc = dc * f
        dh = tl.zeros((BB, HP), tl.float32)
        dh = _product(di, wk, square, dh, PRECISION)
        dh = _product(df, wk + H * H, square, dh, PRECISION)
        dh = _product(dg, wk + 2 * H * H, square, dh, PRECISION)
        dh = _product(do, wk + 3 * H * H, square, dh, PRECISION)
    tl.store(dh0 + k * B * H + at, dh, mask=inside)
    tl.store(dc0 + k * B * H + at, dc, mask=inside)


def recurrence(
    gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The time steps of K clients.

    Args:
        gates: [K, T, B, 4H], what the inputs and the biases add to the gates.
        hidden: [K, B, H], before the first time step.
        cell: [K, B, H], before the first time step.
        weight: [K, 4H, H], recurrent; H is at most ``MOST_HIDDEN``.

    Returns:
        The hidden states [K, T, B, H] of all time steps, and the last cell states [K, B, H].

    Raises:
        NotImplementedError: a tensor is of another dtype than float32.
    """
    check_dtype(gates)
    if gates.dtype == torch.bfloat16:
        raise NotImplementedError("the Triton kernel of the LSTM takes float32, not bfloat16")
    found: tuple[Tensor, Tensor]
    found = _Recurrence.apply(gates, hidden, cell, weight)
    return found


class _Recurrence(torch.autograd.Function):
    """See ``recurrence``."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        clients, length, examples, size = *gates.shape[:3], weight.shape[-1]
        weight, hidden, cell = packed(weight), packed(hidden), packed(cell)
        states = gates.new_empty(clients, length, examples, size)
        cells = torch.empty_like(states)
        activated = torch.empty_like(gates, memory_format=torch.contiguous_format)
        sizes = {
            "H": size,
            "HP": hidden_block(size),
            "BB": LSTM_EXAMPLES,
            "PRECISION": precision(),
            **launch(LSTM_WARPS, 1),
        }
        lstm_forward[(triton.cdiv(examples, LSTM_EXAMPLES), clients)](
            packed(gates), weight, hidden, cell, states, cells, activated, examples, length,
            **sizes,
        )  # fmt: skip
        ctx.save_for_backward(weight, hidden, cell, states, cells, activated)
        ctx.sizes = sizes
        return states, cells[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, hidden, cell, states, cells, activated = ctx.saved_tensors
        clients, length, examples, size = states.shape
        into_states, into_last = map(packed, grads)
        into_gates = torch.empty_like(activated)
        into_hidden, into_cell = torch.empty_like(hidden), torch.empty_like(cell)
        lstm_backward[(triton.cdiv(examples, LSTM_EXAMPLES), clients)](
            into_states, into_last, activated, cells, cell, weight, into_gates, into_hidden,
            into_cell, examples, length, **ctx.sizes,
        )  # fmt: skip
        earlier = torch.cat([hidden[:, None], states[:, :-1]], 1).view(clients, -1, size)
        into_weight = into_gates.view(clients, length * examples, -1).transpose(1, 2) @ earlier
        return into_gates, into_hidden, into_cell, into_weight
