"""Examples that the model is evaluated on, in batches that are divided among the ranks."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch

from hpcfl.data.base import Transform
from hpcfl.data.partition import ExampleRows
from hpcfl.local.examples import ExampleSource, InMemory, example_source, resident
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
        mapped: see ``resident``.
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
        mapped: bool,
    ) -> None:
        self._examples, self._rows, self._transform = examples, rows, transform
        self._batch_size, self._dtype = batch_size, dtype
        self._device, self._mapped = device, mapped

    def __len__(self) -> int:
        if self._rows is not None:
            return len(self._rows)
        return len(self._examples.labels) if self._examples else 0

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Batches number ``rank``, ``rank + ranks``, ...; none where there is nothing."""
        if self._source is None:
            return
        count, step = len(self), self._batch_size
        parts = [
            (start, min(start + step, count)) for start in range(rank * step, count, ranks * step)
        ]
        for stored in _stored(self._source, self._rows, parts):
            yield Batch(self._transform(stored.inputs, self._dtype, None), stored.labels)

    @cached_property
    def _source(self) -> ExampleSource | None:
        """Made when it is first needed: many ask for the size of the set alone."""
        if self._examples is None:
            return None
        examples = resident(self._examples, self._device, mapped=self._mapped)
        return example_source(examples, (), self._device)


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
