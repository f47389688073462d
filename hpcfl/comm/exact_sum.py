"""Sum a few scalars over ranks, correctly rounded, however the terms are spread over ranks."""

import math
from collections.abc import Iterable, Sequence

import torch

from hpcfl.comm.base import Comm

_UNIT = 1074  # every double is an integer times 2^-1074 ...
_LIMB = 32  # ... kept in limbs of 32 bits, so that 2^31 ranks cannot overflow an int64
_LIMBS = 70  # ... of which 70 hold 2^(1024 + 1074 + 64 + 32): 2^64 terms of any size


def exact_sums(
    comm: Comm, terms: Sequence[Iterable[float]], device: torch.device | str = "cpu"
) -> list[float]:
    """Collective: for each list of this rank's terms, the correctly rounded sum over all ranks.

    The sum is that of the real numbers, rounded once to a double, so it does not depend on how
    the terms are spread; it is NaN if any term is not finite, and infinite beyond the largest
    double.  For tens to thousands of terms (about 1 us each), not for vectors.

    Args:
        comm: the group of ranks.
        terms: as many lists on every rank; a list may be empty.
        device: where ``comm`` sums tensors.
    """
    rows = torch.tensor([_limbs(list(column)) for column in terms], dtype=torch.int64)
    if comm.size > 1:  # one rank need not wait for its GPU, and NCCL sums nothing of the CPU
        rows = rows.to(device)
        comm.allreduce_sum(rows)
    return [_value(row) for row in rows.tolist()]


def _limbs(terms: list[float]) -> list[int]:
    """The terms' sum as signed limbs, the lowest first; last, how many were not finite."""
    finite = [term for term in terms if math.isfinite(term)]
    ratios = (term.as_integer_ratio() for term in finite)
    whole = sum((top << _UNIT) // bottom for top, bottom in ratios)
    sign = -1 if whole < 0 else 1
    mask = (1 << _LIMB) - 1
    limbs = [sign * (abs(whole) >> _LIMB * i & mask) for i in range(_LIMBS)]
    return [*limbs, len(terms) - len(finite)]


def _value(row: list[int]) -> float:
    """The number that a row of ``_limbs``, or a sum of such rows, represents."""
    *limbs, not_finite = row
    if not_finite:
        return math.nan
    whole = sum(limb << _LIMB * i for i, limb in enumerate(limbs))
    try:
        return whole / (1 << _UNIT)  # Python rounds the quotient of integers correctly
    except OverflowError:
        return math.inf if whole > 0 else -math.inf
