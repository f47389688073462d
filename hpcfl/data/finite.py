"""Find examples with numbers that are not finite."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def row_not_finite(numbers: NDArray[Any]) -> int | None:
    """The first row of numbers [n, ...] that holds one that is not finite; None: all are."""
    if numbers.dtype.kind != "f":
        return None
    finite = np.isfinite(numbers)
    return None if finite.all() else int(np.argwhere(~finite)[0][0])


def peaks(numbers: Tensor) -> NDArray[np.float64]:
    """The largest absolute value [n] of each example [n, ...]; NaN of one with a NaN.

    0 of integers and booleans, which are finite.
    """
    if not numbers.is_floating_point() or not numbers.numel():
        return np.zeros(len(numbers))
    low, high = numbers.reshape(len(numbers), -1).aminmax(dim=1)  # without a copy of all numbers
    found: NDArray[np.float64] = torch.maximum(-low, high).double().cpu().numpy()
    return found
