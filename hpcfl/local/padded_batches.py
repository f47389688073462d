"""Batches of several clients side by side, padded to one width."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.local.block_batches import Lay, PaddedIndices
from hpcfl.local.block_gradients import Batches
from hpcfl.local.error_context import client_errors
from hpcfl.local.examples import to_device
from hpcfl.local.step import ClientTask
from hpcfl.types import Batch


class Step(NamedTuple):
    """One local step of K clients."""

    batches: Batches
    active: Tensor  # [K], whether the client has this step


class PaddedBatches:
    """Lays batches side by side, K clients of B examples each, whoever there is.

    Args:
        size: K.
        width: B, of the widest batch there can be.
        together: lays all clients' batches at once; when None, each is asked for its own.
    """

    def __init__(self, size: int, width: int, together: Lay | None = None) -> None:
        self._size, self._width = size, width
        self._lay = _one_by_one if together is None else together

    def steps(self, tasks: Sequence[ClientTask]) -> Iterator[Step]:
        """Every local step of the longest of at most K tasks; the others stop when they are done.

        Raises:
            ClientError: a client's data raised.
        """
        nobody = [0] * (self._size - len(tasks))
        first = torch.tensor([*(task.dropout_seed for task in tasks), *nobody])
        laid = self._lay(tasks, self._size, self._width)
        for step, (inputs, labels, counts) in enumerate(laid):
            if step == 0:
                first = to_device(first, labels.device)
            yield Step(Batches(inputs, labels, counts, first + step), counts[:, 0] > 0)


def _one_by_one(tasks: Sequence[ClientTask], size: int, width: int) -> Iterator[PaddedIndices]:
    """The batches of each task, one step at a time."""
    work = [int(task.client.steps) for task in tasks]
    for step in range(max(work)):
        rows: list[Batch | None] = []
        for task, steps in zip(tasks, work, strict=True):
            with client_errors(task, "step"):
                rows.append(next(task.batches) if step < steps else None)
        like = next(row for row in rows if row is not None)
        own = [*rows, *[None] * (size - len(rows))]
        sizes = [0 if row is None else len(row.labels) for row in own]
        # Filled with a real example: zeros may have no gradient, and nan times 0 is nan.
        inputs, labels = (
            torch.stack([_widened((row or like)[part], width) for row in own]) for part in (0, 1)
        )
        counts = torch.arange(width) < torch.tensor(sizes).unsqueeze(1)
        yield PaddedIndices(inputs, labels, to_device(counts.float(), labels.device))


def _widened(batch: Tensor, width: int) -> Tensor:
    """[width, ...]: the first example again where there is no more."""
    rest = width - len(batch)
    return torch.cat([batch, batch[:1].expand(rest, *batch.shape[1:])]) if rest else batch
