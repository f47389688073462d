"""Make the batches of a client ahead; small ones several at a time."""

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

EAGER = 1 << 18  # bytes, as stored, of the batches that are made before they are asked for
ALIGNED = 64  # bytes: torch's allocations begin at multiples of it


class BatchPrefetcher:
    """Makes the batches of a client's local steps.

    Between two steps every operation starts with cold caches, so that a few operations on several
    small batches cost less than as many on each.

    Args:
        supply: of the examples.
        inputs: as stored.
        dtype: of the model.
        device: of the batches.
    """

    def __init__(
        self,
        supply: ExampleSource,
        inputs: Tensor | Stored,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._supply, self._dtype, self._device = supply, dtype, device
        self._most = EAGER // max(1, prod(inputs.shape[1:]) * inputs.dtype.itemsize)

    def __call__(
        self, client: int, picks: Iterator[BatchIndices], transform: Transform
    ) -> Iterator[Batch]:
        """A batch for each of the picks of a client; its bits are as if it were made alone."""
        runs, ahead = tee(_runs(picks, self._most))  # a file is read before draws are needed
        coming = self._supply.of_client(client, (together.positions for together, _ in ahead))
        for together, sizes in runs:
            yield from self._made(next(coming), together.draws, sizes, transform)

    def _made(
        self,
        stored: Batch,
        draws: NDArray[np.int64] | None,
        sizes: Sequence[int],
        transform: Transform,
    ) -> Sequence[Batch]:
        """Batches of these sizes."""
        sent_draws = None if draws is None else to_device(torch.from_numpy(draws), self._device)
        whole = Batch(transform(stored.inputs, self._dtype, sent_draws), stored.labels)
        if len(sizes) == 1:
            return [whole]
        inputs, labels = (part.split_with_sizes(sizes) for part in whole)
        return [Batch(_aligned(own), those) for own, those in zip(inputs, labels, strict=True)]


def _runs(picks: Iterator[BatchIndices], most: int) -> Iterator[tuple[BatchIndices, list[int]]]:
    """As many steps as take at most so many examples together, one at least; and their sizes."""
    run: list[BatchIndices] = []
    sizes: list[int] = []
    held = 0
    for pick in picks:
        size = len(pick.positions)
        if run and held + size > most:
            yield _joined(run), sizes
            run, sizes, held = [], [], 0
        run.append(pick)
        sizes.append(size)
        held += size
    if run:
        yield _joined(run), sizes


def _joined(run: Sequence[BatchIndices]) -> BatchIndices:
    if len(run) == 1:
        return run[0]
    draws = [pick.draws for pick in run if pick.draws is not None]
    positions = np.concatenate([pick.positions for pick in run])
    return BatchIndices(positions, np.concatenate(draws) if draws else None)


def _aligned(inputs: Tensor) -> Tensor:
    """As if allocated by itself: the last bits of a matrix product depend on where its rows lie."""
    return inputs.clone() if inputs.data_ptr() % ALIGNED else inputs
