"""The examples of batches: in memory, or in a file that is read ahead of training."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from hpcfl.data.partition import Rows
from hpcfl.types import Batch, Examples, Stored

PIECE = 16  # examples that one thread reads at a time
AHEAD = 2  # clients, or batches, that are read before they are asked for
WHOLE = 1 << 29  # bytes of a client's inputs up to which they are read all at once


class ExampleSource(Protocol):
    """Every client's examples, as stored: inputs and labels, brought to the device."""

    def prefetch(self, clients: Sequence[int]) -> None:
        """Read ahead the examples of these clients, which will be asked for in about this order."""
        ...

    def of_client(self, client: int, batches: Iterable[Rows]) -> Iterator[Batch]:
        """The examples at these positions, out of 0..n-1, of the client; batch by batch."""
        ...

    def stream(self, batches: Iterable[Rows]) -> Iterator[Batch]:
        """The examples of these rows of the data set, batch by batch."""
        ...


def supply(
    examples: Examples, rows: Sequence[Rows], device: torch.device, *, resident: bool
) -> ExampleSource:
    """The supply of these examples, of which client i holds ``rows[i]``.

    Args:
        examples: all of them.
        rows: of each client.
        device: where batches go.
        resident: whether examples that are in memory stay on the device.
    """
    if isinstance(examples.inputs, Tensor):
        home = device if resident else torch.device("cpu")
        inputs, labels = examples.inputs.to(home), examples.labels.to(home)
        return InMemory(inputs, labels, rows, device)
    return FromFile(examples.inputs, examples.labels, rows, device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; a GPU goes on with what it does meanwhile."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class InMemory:
    """Everything lies in memory, or in a file that the system maps into memory."""

    def __init__(
        self, inputs: Tensor, labels: Tensor, rows: Sequence[Rows], device: torch.device
    ) -> None:
        self._inputs, self._labels, self._rows, self._device = inputs, labels, rows, device

    def prefetch(self, clients: Sequence[int]) -> None:
        """Nothing to do."""

    def of_client(self, client: int, batches: Iterable[Rows]) -> Iterator[Batch]:
        """Copies of these rows."""
        own = self._rows[client]
        return self.stream(own[positions] for positions in batches)

    def stream(self, batches: Iterable[Rows]) -> Iterator[Batch]:
        """Copies of these rows."""
        for rows in batches:
            yield self.take(to_device(torch.from_numpy(rows), self.home))

    @property
    def home(self) -> torch.device:
        """Where the examples lie."""
        return self._labels.device

    def take(self, rows: Tensor) -> Batch:
        """Copies of these rows [B], which lie where the examples do."""
        inputs, labels = self._inputs.index_select(0, rows), self._labels.index_select(0, rows)
        return Batch(inputs.to(self._device), labels.to(self._device))


class FromFile:
    """Threads read the examples of the clients that come next while the present one trains.

    A client is read whole, once a round, and at most ``AHEAD`` clients wait beside the present one;
    of a client that is larger than ``WHOLE``, so many batches.
    """

    def __init__(
        self, inputs: Stored, labels: Tensor, rows: Sequence[Rows], device: torch.device
    ) -> None:
        self._inputs, self._labels, self._rows, self._device = inputs, labels, rows, device
        self._coming: deque[int] = deque()
        self._present: int | None = None
        self._read: dict[int, Pieces] = {}  # by client: the present one and those ahead of it
        self._most = WHOLE // (prod(inputs.shape[1:]) * inputs.dtype.itemsize)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Started when first needed: a process may have been forked before."""
        return ThreadPoolExecutor(self._inputs.workers, thread_name_prefix="read-ahead")

    def prefetch(self, clients: Sequence[int]) -> None:
        """Begin to read the first of them."""
        self._coming, self._present = deque(clients), None
        self._look_ahead()

    def of_client(self, client: int, batches: Iterable[Rows]) -> Iterator[Batch]:
        """Wait for the client's examples, if they are not there yet."""
        own = self._rows[client]
        if len(own) > self._most:
            yield from self.stream(own[positions] for positions in batches)
            return
        if client != self._present:
            self._present = client
            while client in self._coming and self._coming.popleft() != client:
                pass
            self._look_ahead()
        inputs = self._read[client]
        for positions in batches:
            yield self._batch(inputs.whole[torch.from_numpy(positions)], own[positions])

    def stream(self, batches: Iterable[Rows]) -> Iterator[Batch]:
        """Batches are read ahead, like clients."""
        waiting: deque[tuple[Pieces, Rows]] = deque()
        for rows in batches:
            waiting.append((self._submit(rows), rows))
            if len(waiting) > AHEAD:
                pieces, due = waiting.popleft()
                yield self._batch(pieces.whole, due)
        for pieces, due in waiting:
            yield self._batch(pieces.whole, due)

    def _batch(self, inputs: Tensor, rows: Rows) -> Batch:
        labels = self._labels[torch.from_numpy(rows)]
        return Batch(inputs.to(self._device), labels.to(self._device))

    def _look_ahead(self) -> None:
        """Begin to read what is soon needed, and forget the rest."""
        present = [] if self._present is None else [self._present]
        soon = dict.fromkeys([*present, *islice(self._coming, AHEAD)])
        small = (client for client in soon if len(self._rows[client]) <= self._most)
        self._read = {i: self._read.get(i) or self._submit(self._rows[i]) for i in small}

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
