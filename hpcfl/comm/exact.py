"""The exact mean: the same bits however the clients are spread over ranks.

Floating-point addition depends on the order of its terms; addition of integers does not.  So each
client's weighted value becomes an integer in units of one power of two per field, known to all
ranks from the field's largest term; the integers are summed, over clients and then over ranks in
one all-reduce, and the sum is turned back once.

    peak  = max over the cohort and the field of |w u|            (all-reduced)
    unit  = 2^(e - b),  2^(e-1) <= peak < 2^e,  b = min(51, 62 - ceil(log2 |S|))
    sum   = sum over clients of round(w u / unit)                 (int64, below 2^62)
    mean  = sum unit / W                                          (W: total weight, or |S|)

Error.  w u is formed in float64: exactly for float32 uploads and integer weights below 2^29, else
with one rounding (relative 2^-53).  A term then moves by at most unit / 2 <= 2^-b peak, so every
coordinate of the mean is within |S| / W x 2^-b x peak of the true one (b = 51 up to 2048 clients),
plus two roundings to float64 and one to the uploads' dtype.

Rounding is done by adding 3 x 2^51 units: the sum then lies between 2^52 and 2^53 units, where
neighbouring doubles differ by one unit and their bit patterns by 1, which makes the pattern itself
the integer, up to a constant.  On a CPU this is five times cheaper than a conversion from float64
to int64.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hpcfl.comm.reduction import Column, FieldBuffer, Reduction

_SHIFTER = 3.0 * 2.0**51
_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 24}  # doubles of scratch: 4 MiB stay in cache, 128 MiB
_ROWS = 16  # clients at once in it: with more, the piece of each would be too short
_LARGEST_SHIFT = 900  # _SHIFTER x 2.0**shift must itself be a finite double, and 2.0**-shift


class ExactReduction(Reduction):
    """A reduction whose result does not depend on the number of ranks, bit for bit."""

    def summed(self, dtype: torch.dtype) -> torch.dtype:
        """int64, for uploads of any dtype."""
        return torch.int64

    def accumulate(self, field: FieldBuffer, column: Column, weights: Sequence[float]) -> None:
        """Set the buffer's sum to that of this rank's clients, in units of 2^-shift."""
        _accumulate(column, weights, _shift(field), field.sum, self._scratch)

    def restore(self, field: FieldBuffer) -> Tensor:
        """The flat mean, from the integers summed over all ranks."""
        return _restore(field.sum, field.divisor, _shift(field), self._dtype, self._scratch)

    @cached_property
    def _scratch(self) -> Tensor:
        return torch.empty(_BLOCK[self._device.type], dtype=torch.float64, device=self._device)


def _shift(field: FieldBuffer) -> int:
    """The s for which terms up to the peak, times 2^s, can be rounded and summed in int64."""
    if field.peak == 0:
        return 0
    return min(51, 62 - (field.cohort - 1).bit_length()) - math.frexp(field.peak)[1]


def _accumulate(
    column: Column, weights: Sequence[float], shift: int, out: Tensor, scratch: Tensor
) -> None:
    """Set ``out`` [n] (int64) to the sum over clients of round(2^shift x weight x value)."""
    clients, n = len(weights), out.numel()
    if not clients:
        out.zero_()
        return
    # Only float64 uploads below 1e-255 or above 1e285 are scaled before they are rounded.
    unit = max(-_LARGEST_SHIFT, min(shift, _LARGEST_SHIFT))
    factors = torch.tensor([[w * 2.0 ** (shift - unit)] for w in weights], dtype=scratch.dtype)
    scales = None if bool((factors == 1).all()) else factors.to(out.device)
    if isinstance(column, Tensor):
        _sum_rounded(column.to(scratch.dtype, copy=True), scales, unit, out)
        return
    rows = min(clients, _ROWS)
    width = scratch.numel() // rows
    for begin in range(0, n, width):
        whole = out[begin : begin + width]
        for k in range(0, clients, rows):
            own = column[k : k + rows]
            block = scratch[: len(own) * len(whole)].view(len(own), len(whole))
            parts = [tensor[begin : begin + width] for tensor in own]
            torch._foreach_copy_(block.unbind(), parts)  # a few kernels on a GPU for all clients
            part = whole if k == 0 else torch.empty_like(whole)
            _sum_rounded(block, None if scales is None else scales[k : k + rows], unit, part)
            if k:
                whole += part


def _sum_rounded(terms: Tensor, scales: Tensor | None, shift: int, out: Tensor) -> None:
    """Set ``out`` [n] to the sum over rows of round(2^shift x scales x terms [K, n]).

    Terms are overwritten; no scales [K, 1] are ones.
    """
    if scales is not None:
        terms.mul_(scales)
    shifter = _SHIFTER * 2.0**-shift
    pattern = int(np.float64(shifter).view(np.int64))
    # The sum wraps around modulo 2^64 until the constants are taken away again; the result fits.
    constants = (terms.shape[0] * pattern + 2**63) % 2**64 - 2**63
    bits = terms.add_(shifter).view(torch.int64)
    if bits.shape[0] == 1:  # a sum of one row would be a copy of it, which is a pass more
        torch.sub(bits[0], constants, out=out)
        return
    torch.sum(bits, 0, out=out).sub_(constants)


def _restore(
    sums: Tensor, divisor: float, shift: int, dtype: torch.dtype, scratch: Tensor
) -> Tensor:
    """``sums`` [n] x 2^-shift / divisor, rounded to ``dtype``."""
    first, rest = min(shift, _LARGEST_SHIFT), max(shift - _LARGEST_SHIFT, 0)
    means = torch.empty(sums.numel(), dtype=dtype, device=sums.device)
    width = scratch.numel()
    for begin in range(0, sums.numel(), width):
        part = sums[begin : begin + width]
        block = scratch[: part.numel()].copy_(part).div_(divisor * 2.0**first)
        if rest:
            block.mul_(2.0**-rest)
        means[begin : begin + width] = block
    return means
