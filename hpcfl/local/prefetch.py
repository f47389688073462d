"""Make the batches of a client before they are needed; small ones several at a time."""

from collections.abc import Iterator, Sequence
from itertools import tee
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import Transform
from hpcfl.local.examples import ExampleSource, to_device
from hpcfl.local.step import BatchIndices
from hpcfl.types import Batch, Stored

PREFETCH_BYTES = 1 << 18  # of inputs, as stored, that are transformed at once
ALIGNMENT = 64  # bytes: torch's allocations begin at multiples of it


class BatchPrefetcher:
    """Makes the batches of a client's local steps.

    Training evicts the data and code of a transform from the processor's caches, so that one
    transform of several small batches costs less than one of each.

    Args:
        source: of the examples.
        inputs: as stored.
        dtype: of the model.
        device: of the batches.
    """

    def __init__(
        self,
        source: ExampleSource,
        inputs: Tensor | Stored,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._source, self._dtype, self._device = source, dtype, device
        self._most = PREFETCH_BYTES // max(1, prod(inputs.shape[1:]) * inputs.dtype.itemsize)

    def __call__(
        self, client: int, indices: Iterator[BatchIndices], transform: Transform
    ) -> Iterator[Batch]:
        """A client's batches of these indices; each has the bits that it would have alone."""
        # The source reads positions ahead of the draws, hence two iterators over the groups.
        groups, ahead = tee(_groups(indices, self._most))
        stored = self._source.of_client(client, (joined.positions for joined, _ in ahead))
        for joined, sizes in groups:
            yield from self._split(next(stored), joined.draws, sizes, transform)

    def _split(
        self,
        stored: Batch,
        draws: NDArray[np.int64] | None,
        sizes: Sequence[int],
        transform: Transform,
    ) -> Sequence[Batch]:
        """Transform the examples of a group, and split them into batches of these sizes."""
        on_device = None if draws is None else to_device(torch.from_numpy(draws), self._device)
        whole = Batch(transform(stored.inputs, self._dtype, on_device), stored.labels)
        if len(sizes) == 1:
            return [whole]
        inputs, labels = (leaf.split_with_sizes(sizes) for leaf in whole)
        return [Batch(_aligned(x), y) for x, y in zip(inputs, labels, strict=True)]


def _groups(indices: Iterator[BatchIndices], most: int) -> Iterator[tuple[BatchIndices, list[int]]]:
    """Join consecutive steps of at most ``most`` examples, one step at least; and their sizes."""
    group: list[BatchIndices] = []
    sizes: list[int] = []
    total = 0
    for step in indices:
        size = len(step.positions)
        if group and total + size > most:
            yield _joined(group), sizes
            group, sizes, total = [], [], 0
        group.append(step)
        sizes.append(size)
        total += size
    if group:
        yield _joined(group), sizes


def _joined(group: Sequence[BatchIndices]) -> BatchIndices:
    if len(group) == 1:
        return group[0]
    draws = [step.draws for step in group if step.draws is not None]
    positions = np.concatenate([step.positions for step in group])
    return BatchIndices(positions, np.concatenate(draws) if draws else None)


def _aligned(inputs: Tensor) -> Tensor:
    """The inputs, aligned as torch allocates a tensor.

    The last bits of a matrix product depend on the alignment of its rows, and a batch must not
    depend on the group that it was made in.
    """
    return inputs.clone() if inputs.data_ptr() % ALIGNMENT else inputs
