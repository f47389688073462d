"""The batches of several clients side by side, filled up to one width."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.local.many import Batches
from hpcfl.local.sequential import named
from hpcfl.local.step import Visit
from hpcfl.local.supply import sent
from hpcfl.types import Batch


class Step(NamedTuple):
    """One local step of K clients."""

    batches: Batches
    active: Tensor  # [K], whether the client has this step


class Filling:
    """Lays batches side by side, K clients of B examples each, whoever there is.

    Args:
        size: K.
        width: B, of the widest batch there can be.
    """

    def __init__(self, size: int, width: int) -> None:
        self._size, self._width = size, width

    def steps(self, visits: Sequence[Visit]) -> Iterator[Step]:
        """Every local step of the longest of at most K visits; the others stand still behind.

        Raises:
            ClientError: a client's data raised.
        """
        counts = [int(visit.about.steps) for visit in visits]
        for step in range(max(counts)):
            rows: list[Batch | None] = []
            for visit, count in zip(visits, counts, strict=True):
                with named(visit, "step"):
                    rows.append(next(visit.batches) if step < count else None)
            yield self._step(rows, [visit.dropout_seed + step for visit in visits])

    def _step(self, rows: Sequence[Batch | None], seeds: Sequence[int]) -> Step:
        like = next(row for row in rows if row is not None)
        own = [*rows, *[None] * (self._size - len(rows))]
        sizes = [0 if row is None else len(row.labels) for row in own]
        # Filled with a real example: zeros may have no gradient, and nan times 0 is nan.
        inputs, labels = (
            torch.stack([self._widened((row or like)[part]) for row in own]) for part in (0, 1)
        )
        counts = torch.arange(self._width) < torch.tensor(sizes).unsqueeze(1)
        counted = sent(counts.float(), labels.device)
        drawn = sent(torch.tensor([*seeds, *[0] * (self._size - len(seeds))]), labels.device)
        return Step(Batches(inputs, labels, counted, drawn), counted[:, 0] > 0)

    def _widened(self, batch: Tensor) -> Tensor:
        """[B, ...]: the first example again where there is no more."""
        rest = self._width - len(batch)
        return torch.cat([batch, batch[:1].expand(rest, *batch.shape[1:])]) if rest else batch
