"""Where batches get their inputs from: memory, or a file that is read ahead of the training."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from hpcfl.data.partition import Rows
from hpcfl.types import Stored

PIECE = 16  # examples that one thread reads at a time
AHEAD = 2  # clients, or batches, that are read before they are asked for


class Supply(Protocol):
    """The inputs of every client's examples, as stored, on the device."""

    def expect(self, clients: Sequence[int]) -> None:
        """These clients will be asked for, in about this order."""
        ...

    def take(self, client: int, positions: Tensor) -> Tensor:
        """Inputs [B, ...] at these positions, out of 0..n-1, of the client's examples."""
        ...

    def stream(self, batches: Iterable[Rows]) -> Iterator[Tensor]:
        """The inputs of one batch of rows after the other."""
        ...


def supply(inputs: Tensor | Stored, rows: Sequence[Rows], device: torch.device) -> Supply:
    """The supply of these inputs, of which client i holds ``rows[i]``."""
    if isinstance(inputs, Tensor):
        return InMemory(inputs, rows, device)
    return FromFile(inputs, rows, device)


class InMemory:
    """Everything lies on the device, or in a file that the system maps into memory."""

    def __init__(self, inputs: Tensor, rows: Sequence[Rows], device: torch.device) -> None:
        self._inputs, self._rows, self._device = inputs.to(device), rows, device

    def expect(self, clients: Sequence[int]) -> None:
        """Nothing to do."""

    def take(self, client: int, positions: Tensor) -> Tensor:
        """A copy of these rows."""
        chosen = torch.from_numpy(self._rows[client])[positions]
        return self._inputs.index_select(0, chosen.to(self._device))

    def stream(self, batches: Iterable[Rows]) -> Iterator[Tensor]:
        """A copy of each batch."""
        for rows in batches:
            yield self._inputs.index_select(0, torch.from_numpy(rows).to(self._device))


class FromFile:
    """Threads read the examples of the clients that come next while the present one trains.

    A client is read whole, and at most ``AHEAD`` clients wait beside the one that was last asked
    for.
    """

    def __init__(self, inputs: Stored, rows: Sequence[Rows], device: torch.device) -> None:
        self._inputs, self._rows, self._device = inputs, rows, device
        self._coming: deque[int] = deque()
        self._present: int | None = None
        self._read: dict[int, Pieces] = {}  # by client: the present one and those ahead of it

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Started when first needed: a process may have been forked before."""
        return ThreadPoolExecutor(self._inputs.workers, thread_name_prefix="read-ahead")

    def expect(self, clients: Sequence[int]) -> None:
        """Begin to read the first of them."""
        self._coming, self._present = deque(clients), None
        self._look_ahead()

    def take(self, client: int, positions: Tensor) -> Tensor:
        """Wait for the client's examples, if they are not there yet."""
        if client != self._present:
            self._present = client
            while client in self._coming and self._coming.popleft() != client:
                pass
            self._look_ahead()
        return self._read[client].whole[positions].to(self._device)

    def stream(self, batches: Iterable[Rows]) -> Iterator[Tensor]:
        """Batches are read ahead, like clients."""
        waiting: deque[Pieces] = deque()
        for rows in batches:
            waiting.append(self._submit(rows))
            if len(waiting) > AHEAD:
                yield waiting.popleft().whole.to(self._device)
        while waiting:
            yield waiting.popleft().whole.to(self._device)

    def _look_ahead(self) -> None:
        """Begin to read what is soon needed, and forget the rest."""
        present = [] if self._present is None else [self._present]
        soon = dict.fromkeys([*present, *islice(self._coming, AHEAD)])
        self._read = {i: self._read.get(i) or self._submit(self._rows[i]) for i in soon}

    def _submit(self, rows: Rows) -> "Pieces":
        starts = range(0, len(rows), PIECE)
        return Pieces(
            [self._threads.submit(self._inputs.read, rows[k : k + PIECE]) for k in starts]
        )


class Pieces:
    """Examples that are being read."""

    def __init__(self, futures: Sequence[Future[Tensor]]) -> None:
        self._futures = futures

    @cached_property
    def whole(self) -> Tensor:
        """All of them, once they are there; raises what reading them raised."""
        futures, self._futures = self._futures, ()
        return torch.cat([future.result() for future in futures])
