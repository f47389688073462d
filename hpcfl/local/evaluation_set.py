"""Examples that the model is evaluated on, in batches that are divided among the ranks."""

from collections.abc import Iterator

import numpy as np
import torch

from hpcfl.data.base import Transform
from hpcfl.data.partition import ExampleRows
from hpcfl.local.examples import example_source
from hpcfl.types import Batch, Examples


class EvaluationSet:
    """The test set or the validation set; each of R ranks evaluates every R-th batch.

    Args:
        examples: the test set, or the training examples; None: there is nothing to evaluate on.
        rows: those of ``examples`` that belong to the set; None: all.
        transform: the data set's own, also of examples whose client has another.
        batch_size: examples in a batch.
        dtype: of the model.
        device: of the batches.
    """

    def __init__(
        self,
        examples: Examples | None,
        rows: ExampleRows | None,
        transform: Transform,
        *,
        batch_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._examples, self._rows, self._transform = examples, rows, transform
        self._batch_size, self._dtype, self._device = batch_size, dtype, device

    def __len__(self) -> int:
        if self._rows is not None:
            return len(self._rows)
        return len(self._examples.labels) if self._examples else 0

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Batches number ``rank``, ``rank + ranks``, ...; none where there is nothing."""
        if self._examples is None:
            return
        count, step = len(self), self._batch_size
        own = (
            np.arange(start, min(start + step, count))
            for start in range(rank * step, count, ranks * step)
        )
        if self._rows is not None:
            chosen = self._rows
            own = (chosen[positions] for positions in own)
        # Not resident on a GPU: its memory is for the training examples.
        for stored in example_source(self._examples, (), self._device, resident=False).stream(own):
            yield Batch(self._transform(stored.inputs, self._dtype, None), stored.labels)
