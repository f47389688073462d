"""The batches of a block out of memory: what all clients take is sent once, then gathered by step.

However many clients there are, a step's batches are one gather of inputs, one of labels and one
call of the transform.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import Transform
from hpcfl.data.partition import Rows
from hpcfl.local.step import Pick, Visit
from hpcfl.local.supply import InMemory, sent

AT_ONCE = 1 << 22  # places of an index: 32 MiB of it, and as much of draws


class Laid(NamedTuple):
    """One batch of each of K clients side by side, all B wide.

    Behind a client's batch its first example is repeated; a client that stands still has the batch
    of the first that does not.
    """

    inputs: Tensor  # [K, B, ...]
    labels: Tensor  # [K, B, ...]
    counts: Tensor  # [K, B], 1 for an example and 0 for filling
    sizes: Sequence[int]  # [K], of the batches; 0 where a client stands still


Lay = Callable[[Sequence[Visit], int, int], Iterator[Laid]]  # of visits, K and B


class Gather:
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

    def __call__(self, visits: Sequence[Visit], size: int, width: int) -> Iterator[Laid]:
        """Every local step of the longest visit.

        Args:
            visits: at most K.
            size: K.
            width: B, of the widest batch there can be.
        """
        work = [int(visit.about.steps) for visit in visits]
        most = max(1, AT_ONCE // (size * width))
        for begin in range(0, max(work), most):
            picks = [
                list(islice(visit.picks, min(max(steps - begin, 0), most)))
                for visit, steps in zip(visits, work, strict=True)
            ]
            yield from self._lay([visit.client for visit in visits], picks, size, width)

    def _lay(
        self, clients: Sequence[int], picks: Sequence[list[Pick]], size: int, width: int
    ) -> Iterator[Laid]:
        """Some steps, whose index takes little memory."""
        sizes = np.zeros((size, max(map(len, picks))), dtype=np.int64)
        for own, taken in zip(sizes, picks, strict=False):  # fewer visits, perhaps
            own[: len(taken)] = [len(pick.positions) for pick in taken]
        there = np.arange(width) < sizes[..., None]
        rows = [
            self._rows[client][np.concatenate([pick.positions for pick in taken])]
            for client, taken in zip(clients, picks, strict=True)
            if taken
        ]
        draws = [pick.draws for taken in picks for pick in taken if pick.draws is not None]
        index = sent(_spread(rows, there), self._examples.home)
        drawn = sent(_spread(draws, there), self._device) if draws else None
        counts = sent(torch.from_numpy(there.swapaxes(0, 1).astype(np.float32)), self._device)
        for step, chosen in enumerate(index):
            stored = self._examples.take(chosen.view(-1))
            each = None if drawn is None else drawn[step].view(-1)
            inputs, labels = (
                part.view(size, width, *part.shape[1:])
                for part in (self._transform(stored.inputs, self._dtype, each), stored.labels)
            )
            if self._device.type == "cpu":  # a graph copies them into its own order anyway
                inputs = inputs.contiguous()
            yield Laid(inputs, labels, counts[step], sizes[:, step].tolist())


def _spread(numbers: Sequence[NDArray[np.int64]], there: NDArray[np.bool_]) -> Tensor:
    """[S, K, B]: every place has its number, or that of the example which fills it.

    Args:
        numbers: client after client, step after step.
        there: [K, S, B], the places that have one of their own.
    """
    found = np.zeros(there.shape, dtype=np.int64)
    found[there] = np.concatenate(numbers)
    found = np.where(there, found, found[..., :1])
    trains = there[..., 0]
    others = found[trains.argmax(0), np.arange(trains.shape[1])]
    found = np.where(trains[..., None], found, others)
    return torch.from_numpy(np.ascontiguousarray(found.swapaxes(0, 1)))
