"""The fast mean: a sum of floats, whose last bits depend on the number of ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcfl.comm.reduction import Column, FieldBuffer, Reduction


class FastReduction(Reduction):
    """A reduction in the uploads' own dtype.

    Every coordinate of the mean is within (|S| + 2) x eps / W x sum |w u| of the true one, where
    eps is 2^-24 for float32 and 2^-53 for float64.
    """

    def summed(self, dtype: torch.dtype) -> torch.dtype:
        """The uploads' own dtype."""
        return dtype

    def accumulate(self, field: FieldBuffer, column: Column, weights: Sequence[float]) -> None:
        """Set the buffer's sum to this rank's part of the mean."""
        field.sum.zero_()
        for tensor, weight in zip(column, weights, strict=True):
            # Divided before the sum: each partial sum stays below the largest upload, so a mean
            # of large floats cannot overflow.
            field.sum.add_(tensor, alpha=weight / field.divisor)

    def restore(self, field: FieldBuffer) -> Tensor:
        """The flat mean; a copy, as a GPU's last bits may depend on where a vector begins."""
        return field.sum.clone()
