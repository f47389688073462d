"""Examples that the model is evaluated on, in batches that are divided among the ranks."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from hpcfl.clients.examples import ExampleSource, InMemory
from hpcfl.data.base import Transform
from hpcfl.data.partition import ExampleRows
from hpcfl.types import Batch


class EvaluationSet:
    """The test set or the validation set; each of R ranks evaluates every R-th batch.

    Args:
        size: the number of its examples, perhaps 0.
        rows: of the source, that belong to the set; None: the first ``size``, which are all.
        source: gives the source of its examples; called when one is needed.
        transform: the data set's own, also of examples whose client has another.
        batch_size: examples in a batch.
        dtype: of the model.
    """

    def __init__(
        self,
        size: int,
        rows: ExampleRows | None,
        source: Callable[[], ExampleSource],
        transform: Transform,
        *,
        batch_size: int,
        dtype: torch.dtype,
    ) -> None:
        self._size, self._rows, self._source, self._transform = size, rows, source, transform
        self._batch_size, self._dtype = batch_size, dtype

    def __len__(self) -> int:
        return self._size

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Batches number ``rank``, ``rank + ranks``, ...; none where there is nothing."""
        if not self._size:
            return
        count, step = self._size, self._batch_size
        parts = [
            (start, min(start + step, count)) for start in range(rank * step, count, ranks * step)
        ]
        for stored in _stored(self._source(), self._rows, parts):
            yield Batch(self._transform(stored.inputs, self._dtype, None), stored.labels)


def _stored(
    source: ExampleSource, rows: ExampleRows | None, parts: Sequence[tuple[int, int]]
) -> Iterator[Batch]:
    """The examples from a first number of the set up to an end."""
    if rows is not None:
        return source.stream(rows[first:end] for first, end in parts)
    if isinstance(source, InMemory):  # the numbers are made where the examples are
        where = source.device
        return (source.take(torch.arange(first, end, device=where)) for first, end in parts)
    return source.stream(np.arange(first, end) for first, end in parts)
