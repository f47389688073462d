"""Make the batches of a block of clients from memory, by one gather at every step.

However many clients there are, a step's batches take one gather of inputs, one of labels and one
call of the transform.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.base import Transform
from hpcfl.data.partition import ExampleRows
from hpcfl.local.examples import InMemory, to_device
from hpcfl.local.task import BatchIndices, ClientTask
from hpcfl.types import IntArray

# Indices that are made at once: 32 MiB, and as much of draws.  Enough to spread the cost of numpy
# and of the copy to the device over many steps, however long a client's round is.
MAX_INDICES = 1 << 22


class PaddedBatch(NamedTuple):
    """One batch of each of K clients, stacked, all B wide.

    A batch is padded by copies of its first example; an inactive client has the batch of the first
    active one.
    """

    inputs: Tensor  # [K, B, ...]
    labels: Tensor  # [K, B, ...]
    counts: Tensor  # [K, B], 1 for an example and 0 for padding


BatchMaker = Callable[[Sequence[ClientTask], int, int], Iterator[PaddedBatch]]  # of tasks, K and B


class BlockBatches:
    """Makes the batches of clients that share examples in memory and have the same transform.

    Args:
        examples: all of them.
        rows: of each client.
        transform: of all clients.
        dtype: of the model.
        device: of the batches.
    """

    def __init__(
        self,
        examples: InMemory,
        rows: Sequence[ExampleRows],
        transform: Transform,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._examples, self._rows = examples, rows
        self._transform, self._dtype, self._device = transform, dtype, device

    def __call__(self, tasks: Sequence[ClientTask], size: int, width: int) -> Iterator[PaddedBatch]:
        """The batches of every local step of the longest task.

        Args:
            tasks: at most K.
            size: K.
            width: B, at least the size of the largest batch.
        """
        work = [int(task.client.steps) for task in tasks]
        clients = [task.client_id for task in tasks]
        chunk = max(1, MAX_INDICES // (size * width))  # steps
        for begin in range(0, max(work), chunk):
            indices = [
                list(islice(task.batch_indices, min(max(steps - begin, 0), chunk)))
                for task, steps in zip(tasks, work, strict=True)
            ]
            yield from self._gather(clients, list(zip_longest(*indices)), size, width)

    def _gather(
        self,
        clients: Sequence[int],
        steps: Sequence[Sequence[BatchIndices | None]],
        size: int,
        width: int,
    ) -> Iterator[PaddedBatch]:
        """The batches of some steps, whose indices are made at once.

        Args:
            clients: of the block.
            steps: for each step the indices of every client; None where it is inactive.
            size: K.
            width: B.
        """
        rows_of = [self._rows[client] for client in clients]
        active = [
            (rows, indices)
            for step in steps
            for rows, indices in zip(rows_of, step, strict=True)
            if indices is not None
        ]
        all_rows = np.concatenate([rows[indices.positions] for rows, indices in active])
        draws = [indices.draws for _, indices in active if indices.draws is not None]
        sizes = np.zeros((len(steps), size), dtype=np.int64)
        for of_step, step in zip(sizes, steps, strict=True):
            of_step[: len(step)] = [
                0 if indices is None else len(indices.positions) for indices in step
            ]
        totals = sizes.sum(1).tolist()
        step_rows = to_device(torch.from_numpy(all_rows), self._examples.device)
        step_draws: Sequence[Tensor | None] = [None] * len(steps)
        if draws:
            numbers = to_device(torch.from_numpy(np.concatenate(draws)), self._device)
            step_draws = numbers.split_with_sizes(totals)
        slots = to_device(torch.from_numpy(_slots(sizes, width)), self._device)
        present = np.arange(width) < sizes[..., None]
        counts = to_device(torch.from_numpy(present.astype(np.float32)), self._device)
        for s, rows in enumerate(step_rows.split_with_sizes(totals)):
            slot = None if present[s].all() else slots[s]
            inputs, labels = self._batches(rows, step_draws[s], slot, (size, width))
            yield PaddedBatch(inputs, labels, counts[s])

    def _batches(
        self, rows: Tensor, draws: Tensor | None, slots: Tensor | None, shape: tuple[int, int]
    ) -> Iterator[Tensor]:
        """Inputs and labels [K, B, ...] of one step.

        Args:
            rows: of the examples, client after client.
            draws: of each example.
            slots: [K * B], which of the examples fills each slot; None: in their order.
            shape: K and B.
        """
        stored = self._examples.take(rows)
        for leaf in (self._transform(stored.inputs, self._dtype, draws), stored.labels):
            batch = leaf if slots is None else leaf.index_select(0, slots)
            batch = batch.view(*shape, *leaf.shape[1:])
            # Which kernels a layer takes, and so its bits, may depend on the order in memory.  A
            # CUDA graph copies its inputs into a fixed order anyway.
            yield batch.contiguous() if self._device.type == "cpu" else batch


def _slots(sizes: IntArray, width: int) -> IntArray:
    """[S, K * B]: which of a step's examples, client after client, fills each slot.

    Args:
        sizes: [S, K], of the batches; 0 where a client is inactive.
        width: B.
    """
    active = sizes > 0
    first = np.take_along_axis(sizes, active.argmax(1)[:, None], 1)  # size of the substitute
    begin = np.where(active, sizes.cumsum(1) - sizes, 0)[..., None]
    present = np.arange(width) < np.where(active, sizes, first)[..., None]
    return (begin + np.where(present, np.arange(width), 0)).reshape(len(sizes), -1)
