"""One step of plain SGD of K clients, in one pass over their parameters and their gradients.

By operations of torch it takes four to five: joining the gradients, the weight decay, the product
with the learning rate, the difference, and the choice of clients that still train.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcfl.local.triton_kernels.launch import launch

SIZE = 1024  # elements of a program
WARPS, STAGES = 4, 1


@triton.jit
def update(
    y, g, rates, active, P, N, COLUMNS, OF_CLIENT, OF_ROW, OF_COLUMN, decay,
    SIZE: tl.constexpr,
):  # fmt: skip
    """y <- y - rate (g + decay y), of one parameter of N elements, where the client is active."""
    k = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = i < N * tl.load(active + k).to(tl.int32)
    at = y + k * P + i
    before = tl.load(at, mask=mask)
    place = k * OF_CLIENT + i // COLUMNS * OF_ROW + i % COLUMNS * OF_COLUMN
    gradient = tl.load(g + place, mask=mask)
    tl.store(at, before - tl.load(rates + k) * (gradient + decay * before), mask=mask)


def descend(
    views: Sequence[Tensor],
    grads: Sequence[Tensor],
    rates: Tensor,
    active: Tensor,
    decay: float,
) -> None:
    """Move each client's parameters, in place.

    Args:
        views: of the clients' vectors [K, P], [K, ...] for each parameter.
        grads: of the same shapes, in any order of memory.
        rates: [K], in float32.
        active: [K], whether a client moves.
        decay: of the weights.
    """
    moving = active.view(torch.uint8)
    for view, grad in zip(views, grads, strict=True):
        rows = _rows(grad)
        clients, _, columns = rows.shape
        size = view[0].numel()
        grid = (triton.cdiv(size, SIZE), clients)
        update[grid](
            view, rows, rates, moving, view.stride(0), size, columns, *rows.stride(), decay,
            SIZE=SIZE, **launch(WARPS, STAGES),
        )  # fmt: skip


def _rows(grad: Tensor) -> Tensor:
    """[K, rows, columns]: the gradient itself where it is a matrix in memory, else a copy."""
    if grad.dim() == 3:  # of a dense layer: often the transpose of what a product has made
        return grad
    return grad.reshape(len(grad), 1, -1)
