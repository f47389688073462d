"""Lists of integers of unequal length, as tokenizers make them, in arrays."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.types import IntArray


class Lists(NamedTuple):
    """n lists of integers."""

    values: NDArray[np.integer[Any]]
    """[sum of the lengths] those of all lists, one after the other."""
    lengths: IntArray
    """[n] of each list."""

    def array(self, length: int, fill: int) -> IntArray:
        """[n, length]: a shorter list is filled up at its end, and a longer one is cut off."""
        if (self.lengths == length).all():
            return self.values.reshape(-1, length).astype(np.int64, copy=False)
        found = np.full((len(self.lengths), length), fill, np.int64)
        starts = np.cumsum(self.lengths) - self.lengths
        place = np.arange(len(self.values)) - np.repeat(starts, self.lengths)
        found[self.goes_on(length)] = self.values[place < length]
        return found

    def goes_on(self, length: int) -> NDArray[np.bool_]:
        """[n, length]: whether a list has an integer at each place."""
        present: NDArray[np.bool_] = np.arange(length) < self.lengths[:, None]
        return present
