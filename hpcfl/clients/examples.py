"""Give local training and evaluation the examples of a batch, on the device.

Examples are in memory, on the device where there is room, or in a file, which threads read ahead.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from hpcfl.data.partition import ExampleRows
from hpcfl.types import Batch, Examples, Stored

RESIDENT_SHARE = 0.5  # of a GPU's free memory; models, activations and batches need the rest
READ_CHUNK = 16  # examples that one thread reads at a time
READ_AHEAD = 2  # clients, or batches, that are read before they are needed
# Up to so many bytes of inputs a client is read all at once, and kept for its whole round; a larger
# one is read batch by batch, repeatedly where it trains for several epochs.
WHOLE_CLIENT_BYTES = 1 << 29


class ExampleSource(Protocol):
    """Gives examples as stored, inputs and labels, on the device."""

    def prefetch(self, clients: Sequence[int]) -> None:
        """Read ahead the examples of these clients, which are needed in about this order."""
        ...

    def of_client(self, client: int, batches: Iterable[ExampleRows]) -> Iterator[Batch]:
        """The examples at these positions, from 0 to n_i - 1, of the client; batch by batch."""
        ...

    def stream(self, batches: Iterable[ExampleRows]) -> Iterator[Batch]:
        """The examples of these rows of the data set, batch by batch."""
        ...


def resident(examples: Examples, device: torch.device, *, mapped: bool) -> Examples:
    """The examples on the GPU, where they are in memory and fit; else as they are.

    Args:
        examples: all of a set, or those that this function returned for it.
        device: of their batches.
        mapped: whether they are in a file that is mapped into memory: it may be larger than the
            device, and a run may need a small part of it.
    """
    inputs, labels = examples
    here = labels.device.type == device.type
    if here or mapped or not isinstance(inputs, Tensor):
        return examples
    free, _ = torch.cuda.mem_get_info(device)
    if inputs.nbytes + labels.nbytes > RESIDENT_SHARE * free:
        return examples
    return Examples(inputs.to(device), labels.to(device))


def example_source(
    examples: Examples, rows: Sequence[ExampleRows], device: torch.device
) -> ExampleSource:
    """The source of these examples, of which client i holds ``rows[i]``.

    Args:
        examples: all of them, see ``resident``.
        rows: of each client.
        device: of the batches.
    """
    if isinstance(examples.inputs, Tensor):
        return InMemory(examples.inputs, examples.labels, rows, device)
    return FromFile(examples.inputs, examples.labels, rows, device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy the tensor to a device; a GPU continues its work meanwhile."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class InMemory:
    """Examples in memory, or in a file that the system maps into memory."""

    def __init__(
        self, inputs: Tensor, labels: Tensor, rows: Sequence[ExampleRows], device: torch.device
    ) -> None:
        self._inputs, self._labels, self._rows, self._device = inputs, labels, rows, device

    def prefetch(self, clients: Sequence[int]) -> None:
        """Nothing to do: the examples are there."""

    def of_client(self, client: int, batches: Iterable[ExampleRows]) -> Iterator[Batch]:
        """Copies of these rows."""
        own = self._rows[client]
        return self.stream(own[positions] for positions in batches)

    def stream(self, batches: Iterable[ExampleRows]) -> Iterator[Batch]:
        """Copies of these rows."""
        for rows in batches:
            yield self.take(to_device(torch.from_numpy(rows), self.device))

    @property
    def device(self) -> torch.device:
        """The device that holds the examples; batches may go to another one."""
        return self._labels.device

    def take(self, rows: Tensor) -> Batch:
        """Copies of these rows [B], whose indices are on the device that holds the examples."""
        inputs, labels = self._inputs.index_select(0, rows), self._labels.index_select(0, rows)
        return Batch(inputs.to(self._device), labels.to(self._device))


class FromFile:
    """Threads read the examples of the next clients while the present one trains.

    A client is read once a round, as a whole, and at most ``READ_AHEAD`` clients are in memory
    besides the present one; a client larger than ``WHOLE_CLIENT_BYTES`` is read batch by batch, at
    most ``READ_AHEAD`` batches ahead.
    """

    def __init__(
        self, inputs: Stored, labels: Tensor, rows: Sequence[ExampleRows], device: torch.device
    ) -> None:
        self._inputs, self._labels, self._rows, self._device = inputs, labels, rows, device
        self._next: deque[int] = deque()
        self._present: int | None = None
        self._chunks: dict[int, Chunks] = {}  # of the present client and of those read ahead
        self._most = WHOLE_CLIENT_BYTES // (prod(inputs.shape[1:]) * inputs.dtype.itemsize)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Started when first needed, as threads do not survive a fork of the process."""
        return ThreadPoolExecutor(self._inputs.workers, thread_name_prefix="read-ahead")

    def prefetch(self, clients: Sequence[int]) -> None:
        """Begin to read the first of these clients."""
        self._next, self._present = deque(clients), None
        self._look_ahead()

    def of_client(self, client: int, batches: Iterable[ExampleRows]) -> Iterator[Batch]:
        """The client's examples; waits for those that are not read yet."""
        own = self._rows[client]
        if len(own) > self._most:
            yield from self.stream(own[positions] for positions in batches)
            return
        if client != self._present:
            self._present = client
            while client in self._next and self._next.popleft() != client:
                pass
            self._look_ahead()
        inputs = self._chunks[client]
        for positions in batches:
            yield self._batch(inputs.whole[torch.from_numpy(positions)], own[positions])

    def stream(self, batches: Iterable[ExampleRows]) -> Iterator[Batch]:
        """The examples of these rows; the next batches are read ahead."""
        waiting: deque[tuple[Chunks, ExampleRows]] = deque()
        for rows in batches:
            waiting.append((self._submit(rows), rows))
            if len(waiting) > READ_AHEAD:
                chunks, first = waiting.popleft()
                yield self._batch(chunks.whole, first)
        for chunks, rows in waiting:
            yield self._batch(chunks.whole, rows)

    def _batch(self, inputs: Tensor, rows: ExampleRows) -> Batch:
        labels = self._labels[torch.from_numpy(rows)]
        return Batch(inputs.to(self._device), labels.to(self._device))

    def _look_ahead(self) -> None:
        """Begin to read the next clients, and drop the examples of all others."""
        present = [] if self._present is None else [self._present]
        soon = dict.fromkeys([*present, *islice(self._next, READ_AHEAD)])
        small = (client for client in soon if len(self._rows[client]) <= self._most)
        self._chunks = {i: self._chunks.get(i) or self._submit(self._rows[i]) for i in small}

    def _submit(self, rows: ExampleRows) -> "Chunks":
        starts = range(0, len(rows), READ_CHUNK)
        return Chunks(
            [self._threads.submit(self._inputs.read, rows[k : k + READ_CHUNK]) for k in starts]
        )


class Chunks:
    """Inputs that threads are reading."""

    def __init__(self, futures: Sequence[Future[Tensor]]) -> None:
        self._futures = futures

    @cached_property
    def whole(self) -> Tensor:
        """All inputs, once they are read; raises what reading them raised."""
        futures, self._futures = self._futures, ()
        return torch.cat([future.result() for future in futures])
