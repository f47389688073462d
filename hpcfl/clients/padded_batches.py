"""The batches of several clients, stacked and padded to one width.

Examples in memory are gathered for all clients of a block at once: however many there are, a step's
batches take one gather of inputs, one of labels and one call of the transform.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.error_context import client_errors
from hpcfl.clients.examples import InMemory, to_device
from hpcfl.clients.task import BatchIndices, ClientTask
from hpcfl.data.base import Transform
from hpcfl.data.partition import ExampleRows
from hpcfl.types import Batch, IntArray

# Indices that are made at once: 32 MiB, and as much of draws.  Enough to spread the cost of numpy
# and of the copy to the device over many steps, however long a client's round is.
MAX_INDICES = 1 << 22

Stacked = tuple[Tensor, Tensor, Tensor]  # inputs, labels and counts, see ``PaddedBatch``
Stack = Callable[[Sequence[ClientTask], int, int], Iterator[Stacked]]  # of tasks, K and B


class PaddedBatch(NamedTuple):
    """One batch of each of K clients, stacked, all B wide; in lanes of one client, without K.

    A batch is padded by copies of its first example; an inactive client, which has taken all its
    steps, has the batch of the first active one.
    """

    inputs: Tensor  # [K, B, ...]
    labels: Tensor  # [K, B, ...]
    counts: Tensor  # [K, B], 1 for an example and 0 for padding; all 0 of an inactive client
    seeds: Tensor  # [K] int64, of the dropout masks

    @property
    def active(self) -> Tensor:
        """[K], whether the client has this step."""
        return self.counts[:, 0] > 0


class PaddedBatches:
    """Makes the batches of blocks: K clients of B examples each, however many there really are.

    A fixed shape lets a CUDA graph be replayed, and gives a client the same bits in any block.

    Args:
        size: K.
        width: B, at least the size of the largest batch.
        stack: makes those of all clients of a block at once; None: from each task's own.
    """

    def __init__(self, size: int, width: int, stack: Stack | None = None) -> None:
        self.size = size
        self._width = width
        self._stack = _from_tasks if stack is None else stack

    def steps(self, tasks: Sequence[ClientTask]) -> Iterator[PaddedBatch]:
        """The batches of all local steps of the longest of at most K tasks.

        Raises:
            ClientError: a client's data raised.
        """
        no_client = [0] * (self.size - len(tasks))
        seeds = torch.tensor([*(task.dropout_seed for task in tasks), *no_client])
        for step, stacked in enumerate(self._stack(tasks, self.size, self._width)):
            if step == 0:
                seeds = to_device(seeds, stacked[1].device)
            yield PaddedBatch(*stacked, seeds + step)


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

    def __call__(self, tasks: Sequence[ClientTask], size: int, width: int) -> Iterator[Stacked]:
        """The batches of every local step of the longest task.

        Args:
            tasks: at most K.
            size: K.
            width: B, at least the size of the largest batch.
        """
        work = [task.steps for task in tasks]
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
    ) -> Iterator[Stacked]:
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
            yield inputs, labels, counts[s]

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


def _from_tasks(tasks: Sequence[ClientTask], size: int, width: int) -> Iterator[Stacked]:
    """Stack the batches of the tasks, one step at a time."""
    for step in range(max(task.steps for task in tasks)):
        batches: list[Batch | None] = []
        for task in tasks:
            with client_errors(task, "step"):
                batches.append(next(task.batches) if step < task.steps else None)
        substitute = next(batch for batch in batches if batch is not None)
        slots = [*batches, *[None] * (size - len(batches))]
        sizes = [0 if batch is None else len(batch.labels) for batch in slots]
        # Padded with a real example: zeros may have no gradient, and nan times 0 is nan.
        inputs, labels = (
            torch.stack([_pad((batch or substitute)[field], width) for batch in slots])
            for field in (0, 1)
        )
        counts = torch.arange(width) < torch.tensor(sizes).unsqueeze(1)
        yield inputs, labels, to_device(counts.float(), labels.device)


def _pad(batch: Tensor, width: int) -> Tensor:
    """[width, ...]: the batch, followed by copies of its first example."""
    missing = width - len(batch)
    return torch.cat([batch, batch[:1].expand(missing, *batch.shape[1:])]) if missing else batch
