"""Make the batches of a block from memory: one index for all clients, gathered at every step.

However many clients there are, a step's batches are one gather of inputs, one of labels and one
call of the transform.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import Transform
from hpcfl.data.partition import Rows
from hpcfl.local.examples import InMemory, to_device
from hpcfl.local.step import BatchIndices, ClientTask

AT_ONCE = 1 << 22  # places of an index: 32 MiB of it, and as much of draws


class PaddedIndices(NamedTuple):
    """One batch of each of K clients side by side, all B wide.

    Behind a client's batch its first example is repeated; a client that stands still has the batch
    of the first that does not.
    """

    inputs: Tensor  # [K, B, ...]
    labels: Tensor  # [K, B, ...]
    counts: Tensor  # [K, B], 1 for an example and 0 for filling


Lay = Callable[[Sequence[ClientTask], int, int], Iterator[PaddedIndices]]  # of tasks, K and B


class BlockBatches:
    """Lays the batches of clients who share examples in memory, and see them in one way.

    Args:
        examples: all of them.
        rows: each client's.
        transform: all clients'.
        dtype: of the model.
        device: of the batches.
    """

    def __init__(
        self,
        examples: InMemory,
        rows: Sequence[Rows],
        transform: Transform,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._examples, self._rows = examples, rows
        self._transform, self._dtype, self._device = transform, dtype, device

    def __call__(
        self, tasks: Sequence[ClientTask], size: int, width: int
    ) -> Iterator[PaddedIndices]:
        """Every local step of the longest task.

        Args:
            tasks: at most K.
            size: K.
            width: B, of the widest batch there can be.
        """
        work = [int(task.client.steps) for task in tasks]
        clients = [task.client_id for task in tasks]
        most = max(1, AT_ONCE // (size * width))
        for begin in range(0, max(work), most):
            picks = [
                list(islice(task.batch_indices, min(max(steps - begin, 0), most)))
                for task, steps in zip(tasks, work, strict=True)
            ]
            yield from self._lay(clients, list(zip_longest(*picks)), size, width)

    def _lay(
        self,
        clients: Sequence[int],
        steps: Sequence[Sequence[BatchIndices | None]],
        size: int,
        width: int,
    ) -> Iterator[PaddedIndices]:
        """Some steps, whose indices take little memory."""
        owned = [self._rows[client] for client in clients]
        each = [
            (own, pick)
            for step in steps
            for own, pick in zip(owned, step, strict=True)
            if pick is not None
        ]
        rows = np.concatenate([own[pick.positions] for own, pick in each])
        draws = [pick.draws for _, pick in each if pick.draws is not None]
        sizes = np.zeros((len(steps), size), dtype=np.int64)
        for found, step in zip(sizes, steps, strict=True):
            found[: len(step)] = [0 if pick is None else len(pick.positions) for pick in step]
        totals = sizes.sum(1).tolist()
        chosen = to_device(torch.from_numpy(rows), self._examples.home).split_with_sizes(totals)
        drawn: Sequence[Tensor | None] = [None] * len(steps)
        if draws:
            numbers = to_device(torch.from_numpy(np.concatenate(draws)), self._device)
            drawn = numbers.split_with_sizes(totals)
        places = to_device(torch.from_numpy(_places(sizes, width)), self._device)
        there = np.arange(width) < sizes[..., None]
        counts = to_device(torch.from_numpy(there.astype(np.float32)), self._device)
        for s in range(len(steps)):
            place = None if there[s].all() else places[s]
            inputs, labels = self._batches(chosen[s], drawn[s], place, (size, width))
            yield PaddedIndices(inputs, labels, counts[s])

    def _batches(
        self, chosen: Tensor, draws: Tensor | None, place: Tensor | None, shape: tuple[int, int]
    ) -> Iterator[Tensor]:
        """Inputs and labels [K, B, ...] of the rows that a step takes.

        Args:
            chosen: those rows, client after client.
            draws: of each.
            place: [K * B], which of them goes there; in their order when None.
            shape: K and B.
        """
        stored = self._examples.take(chosen)
        for part in (self._transform(stored.inputs, self._dtype, draws), stored.labels):
            laid = part if place is None else part.index_select(0, place)
            laid = laid.view(*shape, *part.shape[1:])
            # A graph copies them into an order of its own anyway.
            yield laid.contiguous() if self._device.type == "cpu" else laid


def _places(sizes: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """[S, K * B]: which of a step's examples, client after client, goes to each place.

    Args:
        sizes: [S, K], of the batches; 0 where a client stands still.
        width: B.
    """
    trains = sizes > 0
    first = np.take_along_axis(sizes, trains.argmax(1)[:, None], 1)  # of whose batch stands in
    begin = np.where(trains, sizes.cumsum(1) - sizes, 0)[..., None]
    there = np.arange(width) < np.where(trains, sizes, first)[..., None]
    return (begin + np.where(there, np.arange(width), 0)).reshape(len(sizes), -1)
