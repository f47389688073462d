"""Make batches before they are needed; small ones several at a time, of one client or of many."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, tee
from math import prod
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.examples import ExampleSource, to_device
from hpcfl.clients.task import BatchIndices
from hpcfl.data.base import Transform
from hpcfl.types import Batch, IntArray, Stored

Item = TypeVar("Item")

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
        self.most = PREFETCH_BYTES // max(1, prod(inputs.shape[1:]) * inputs.dtype.itemsize)
        """Examples that are transformed at once, unless one batch is larger."""

    def __call__(
        self, client: int, indices: Iterator[BatchIndices], transform: Transform
    ) -> Iterator[Batch]:
        """A client's batches of these indices; each has the bits that it would have alone."""
        # The source reads positions ahead of the draws, hence two iterators over the groups.
        groups, ahead = tee(map(_joined, groups_of(indices, _size, self.most)))
        stored = self._source.of_client(client, (joined.positions for joined, _ in ahead))
        for joined, sizes in groups:
            yield from _emptied(self._split(next(stored), joined.draws, sizes, transform))

    def batches(self, rows: Sequence[BatchIndices], transform: Transform) -> deque[Batch]:
        """Batches of several clients, made at once; ``positions`` are rows of the data set here."""
        joined, sizes = _joined(rows)
        (stored,) = self._source.stream([joined.positions])
        return self._split(stored, joined.draws, sizes, transform)

    def _split(
        self,
        stored: Batch,
        draws: IntArray | None,
        sizes: Sequence[int],
        transform: Transform,
    ) -> deque[Batch]:
        """Transform the examples of a group, and split them into batches of these sizes."""
        on_device = None if draws is None else to_device(torch.from_numpy(draws), self._device)
        whole = Batch(transform(stored.inputs, self._dtype, on_device), stored.labels)
        if len(sizes) == 1:
            return deque([whole])
        inputs, labels = (leaf.split_with_sizes(sizes) for leaf in whole)
        return deque(Batch(_aligned(x), y) for x, y in zip(inputs, labels, strict=True))


class JoinedClients:
    """The batches of several small clients, made together when one of them first needs its own.

    Each has the bits that it would have alone.  A client may take its batches at any time or never,
    but once only; they are dropped as they are taken.

    Args:
        prefetcher: makes the batches.
        rows: for each client, the rows of the data set, and the draws, of each local step.
        transform: of all these clients.
    """

    def __init__(
        self,
        prefetcher: BatchPrefetcher,
        rows: Sequence[Iterator[BatchIndices]],
        transform: Transform,
    ) -> None:
        self._prefetcher, self._rows, self._transform = prefetcher, rows, transform
        self._made: list[Iterator[Batch]] = []

    def of(self, k: int) -> Iterator[Batch]:
        """The batches of the k-th of these clients."""
        if not self._made:
            self._made = self._make([list(steps) for steps in self._rows])
        yield from self._made[k]

    def _make(self, rows: Sequence[list[BatchIndices]]) -> list[Iterator[Batch]]:
        try:
            batches = iter(self._prefetcher.batches(list(chain(*rows)), self._transform))
        except Exception:  # noqa: BLE001 - raised again, but for the client whose example raises it
            return [self._alone(steps) for steps in rows]
        return [_emptied(deque(islice(batches, len(steps)))) for steps in rows]

    def _alone(self, steps: Sequence[BatchIndices]) -> Iterator[Batch]:
        yield from _emptied(self._prefetcher.batches(steps, self._transform))


def groups_of(
    items: Iterable[Item], size: Callable[[Item], int], most: int
) -> Iterator[list[Item]]:
    """Consecutive items in groups of at most ``most`` in all, but of one item at least."""
    group: list[Item] = []
    total = 0
    for item in items:
        more = size(item)
        if group and total + more > most:
            yield group
            group, total = [], 0
        group.append(item)
        total += more
    if group:
        yield group


def _size(step: BatchIndices) -> int:
    return len(step.positions)


def _joined(group: Sequence[BatchIndices]) -> tuple[BatchIndices, list[int]]:
    """The indices of several steps in one, and the sizes of their batches."""
    if len(group) == 1:
        return group[0], [_size(group[0])]
    draws = [step.draws for step in group if step.draws is not None]
    positions = np.concatenate([step.positions for step in group])
    joined = BatchIndices(positions, np.concatenate(draws) if draws else None)
    return joined, [_size(step) for step in group]


def _emptied(items: deque[Item]) -> Iterator[Item]:
    """The items; none is kept once it was taken."""
    while items:
        yield items.popleft()


def _aligned(inputs: Tensor) -> Tensor:
    """The inputs, aligned as torch allocates a tensor.

    The last bits of a matrix product depend on the alignment of its rows, and a batch must not
    depend on the group that it was made in.
    """
    return inputs.clone() if inputs.data_ptr() % ALIGNMENT else inputs
