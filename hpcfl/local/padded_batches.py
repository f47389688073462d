"""Stack the batches of several clients, padded to one width."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.local.block_batches import BatchMaker, PaddedBatch
from hpcfl.local.block_gradients import Batches
from hpcfl.local.error_context import client_errors
from hpcfl.local.examples import to_device
from hpcfl.local.task import ClientTask
from hpcfl.types import Batch


class Step(NamedTuple):
    """One local step of K clients."""

    batches: Batches
    active: Tensor  # [K], whether the client has this step
    number: Tensor  # k, of the step; 0-d float64


class PaddedBatches:
    """Makes the batches of blocks: K clients of B examples each, however many there really are.

    A fixed shape lets a CUDA graph be replayed, and gives a client the same bits in any block.

    Args:
        size: K.
        width: B, at least the size of the largest batch.
        make: makes the batches of all clients of a block at once; None: from each task's own.
    """

    def __init__(self, size: int, width: int, make: BatchMaker | None = None) -> None:
        self.size = size
        self._width = width
        self._make = _from_tasks if make is None else make

    def steps(self, tasks: Sequence[ClientTask]) -> Iterator[Step]:
        """All local steps of the longest of at most K tasks; clients with fewer become inactive.

        Raises:
            ClientError: a client's data raised.
        """
        no_client = [0] * (self.size - len(tasks))
        seeds = torch.tensor([*(task.dropout_seed for task in tasks), *no_client])
        batches = self._make(tasks, self.size, self._width)
        for step, (inputs, labels, counts) in enumerate(batches):
            if step == 0:
                seeds = to_device(seeds, labels.device)
            number = torch.full((), step, dtype=torch.float64, device=seeds.device)
            yield Step(Batches(inputs, labels, counts, seeds + step), counts[:, 0] > 0, number)


def _from_tasks(tasks: Sequence[ClientTask], size: int, width: int) -> Iterator[PaddedBatch]:
    """Stack the batches of the tasks, one step at a time."""
    steps = [int(task.client.steps) for task in tasks]
    for step in range(max(steps)):
        batches: list[Batch | None] = []
        for task, own_steps in zip(tasks, steps, strict=True):
            with client_errors(task, "step"):
                batches.append(next(task.batches) if step < own_steps else None)
        substitute = next(batch for batch in batches if batch is not None)
        slots = [*batches, *[None] * (size - len(batches))]
        sizes = [0 if batch is None else len(batch.labels) for batch in slots]
        # Padded with a real example: zeros may have no gradient, and nan times 0 is nan.
        inputs, labels = (
            torch.stack([_pad((batch or substitute)[field], width) for batch in slots])
            for field in (0, 1)
        )
        counts = torch.arange(width) < torch.tensor(sizes).unsqueeze(1)
        yield PaddedBatch(inputs, labels, to_device(counts.float(), labels.device))


def _pad(batch: Tensor, width: int) -> Tensor:
    """[width, ...]: the batch, followed by copies of its first example."""
    missing = width - len(batch)
    return torch.cat([batch, batch[:1].expand(missing, *batch.shape[1:])]) if missing else batch
