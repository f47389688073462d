"""Windows of texts: T tokens, and for each of them the one that follows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.data.partition import RowRanges
from hpcfl.types import Examples, IntArray


class Windows(NamedTuple):
    """The windows of several texts, one text after the other.

    Window j of a text t_0, t_1, ... has the inputs t_jT, ..., t_(j+1)T-1 and the labels t_jT+1,
    ..., t_(j+1)T: each token but the first is the label of one place of one window.
    """

    examples: Examples
    """Inputs and labels [n, T], views of the same rows of T + 1 tokens."""
    counts: IntArray
    """[texts] the windows of each text, perhaps none."""
    lengths: IntArray
    """[texts] the tokens of each text."""

    @property
    def unused(self) -> int:
        """The number of tokens that are in no window."""
        length = self.examples.labels.shape[1]
        used = self.counts * length + (self.counts > 0)
        return int((self.lengths - used).sum())

    @property
    def rows(self) -> RowRanges:
        """The windows of each text."""
        return RowRanges(np.cumsum(self.counts) - self.counts, self.counts)


def windows(texts: Sequence[NDArray[Any]], length: int) -> Windows:
    """Cut texts into windows; what is left at the end of a text is in none.

    Args:
        texts: the tokens [n] of each, of one type; one at least.
        length: T, tokens of a window.
    """
    lengths = np.array([len(text) for text in texts], np.int64)
    counts = np.maximum(lengths - 1, 0) // length
    rows = np.empty((counts.sum(), length + 1), texts[0].dtype)
    for text, count, end in zip(texts, counts, np.cumsum(counts), strict=True):
        own, used = rows[end - count : end], count * length
        own[:, :-1] = text[:used].reshape(count, length)
        own[:, 1:] = text[1 : used + 1].reshape(count, length)
    tokens = torch.from_numpy(rows)
    return Windows(Examples(tokens[:, :-1], tokens[:, 1:]), counts, lengths)
