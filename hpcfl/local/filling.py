"""The batches of several clients side by side, filled up to one width."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.local.gather import Laid, Lay
from hpcfl.local.layers import Drop, factors
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
        drops: the model's calls of dropout.
        device: of the batches.
        together: lays all clients' batches at once; when None, each is asked for its own.
    """

    def __init__(
        self,
        size: int,
        width: int,
        drops: Sequence[Drop],
        device: torch.device,
        together: Lay | None = None,
    ) -> None:
        self._size, self._width, self._drops = size, width, drops
        self._lay = self._one_by_one if together is None else together
        self._generators = [torch.Generator(device) for _ in range(size if drops else 0)]

    def steps(self, visits: Sequence[Visit]) -> Iterator[Step]:
        """Every local step of the longest of at most K visits; the others stand still behind.

        Raises:
            ClientError: a client's data raised.
        """
        laid = self._lay(visits, self._size, self._width)
        for step, (inputs, labels, counts, sizes) in enumerate(laid):
            masks = self._masks(sizes, [visit.dropout_seed + step for visit in visits], inputs)
            yield Step(Batches(inputs, labels, counts, masks), counts[:, 0] > 0)

    def _one_by_one(self, visits: Sequence[Visit], size: int, width: int) -> Iterator[Laid]:
        """What each visit has to give, as it comes."""
        work = [int(visit.about.steps) for visit in visits]
        for step in range(max(work)):
            rows: list[Batch | None] = []
            for visit, steps in zip(visits, work, strict=True):
                with named(visit, "step"):
                    rows.append(next(visit.batches) if step < steps else None)
            like = next(row for row in rows if row is not None)
            own = [*rows, *[None] * (size - len(rows))]
            sizes = [0 if row is None else len(row.labels) for row in own]
            # Filled with a real example: zeros may have no gradient, and nan times 0 is nan.
            inputs, labels = (
                torch.stack([_widened((row or like)[part], width) for row in own])
                for part in (0, 1)
            )
            counts = torch.arange(width) < torch.tensor(sizes).unsqueeze(1)
            yield Laid(inputs, labels, sent(counts.float(), labels.device), sizes)

    def _masks(
        self, sizes: Sequence[int], seeds: Sequence[int], like: Tensor
    ) -> tuple[Tensor, ...]:
        for generator, seed in zip(self._generators, seeds, strict=False):  # fewer visits, perhaps
            generator.manual_seed(seed)
        return tuple(
            factors(drop, sizes, self._width, self._generators, like) for drop in self._drops
        )


def _widened(batch: Tensor, width: int) -> Tensor:
    """[width, ...]: the first example again where there is no more."""
    rest = width - len(batch)
    return torch.cat([batch, batch[:1].expand(rest, *batch.shape[1:])]) if rest else batch
