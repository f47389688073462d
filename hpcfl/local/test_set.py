"""The test set in batches, divided among the ranks."""

from collections.abc import Iterator

import numpy as np
import torch

from hpcfl.data.base import Dataset
from hpcfl.local.examples import example_source
from hpcfl.types import Batch


class TestSet:
    """The test set, of which each rank evaluates every R-th batch, R the number of ranks."""

    def __init__(
        self, dataset: Dataset, *, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._examples = dataset.test
        self._transform = dataset.transform
        self._batch_size, self._dtype, self._device = batch_size, dtype, device

    def __len__(self) -> int:
        return len(self._examples.labels) if self._examples else 0

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Batches number ``rank``, ``rank + ranks``, ...; none where there is no test set."""
        if self._examples is None:
            return
        count, step = len(self), self._batch_size
        own = (
            np.arange(start, min(start + step, count))
            for start in range(rank * step, count, ranks * step)
        )
        # Not resident on a GPU: its memory is for the training examples.
        for stored in example_source(self._examples, (), self._device, resident=False).stream(own):
            yield Batch(self._transform(stored.inputs, self._dtype, None), stored.labels)
