"""The simulated clients: their examples, and the task of one of them in a round."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.algorithms.base import Client
from hpcfl.data.base import DRAWS, Dataset, Transform, augments
from hpcfl.data.batches import order, steps, taken
from hpcfl.data.partition import Rows
from hpcfl.local.block_batches import BlockBatches, Lay
from hpcfl.local.examples import InMemory, supply
from hpcfl.local.prefetch import BatchPrefetcher
from hpcfl.local.step import BatchIndices, ClientTask, Local
from hpcfl.models.losses import terms
from hpcfl.seeds import key, stream
from hpcfl.types import Batch

Item = TypeVar("Item")


class ClientPool:
    """All clients, over one copy of the training examples on the rank's device."""

    def __init__(
        self,
        dataset: Dataset,
        rows: Sequence[Rows],
        held: Sequence[Rows] | None,
        local: Local,
        *,
        rate: Callable[[int], float],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        full_batch: int,
    ) -> None:
        """Take over the examples.

        Args:
            dataset: whose training examples the clients hold.
            rows: each client's.
            held: those that each client holds out, or None where ``rows`` are all it has.
            local: the job's local section.
            rate: eta of a round, counted from zero.
            seed: the job's.
            dtype: of the model.
            device: where batches are made.
            full_batch: examples a batch where a client's whole data is needed.
        """
        # What is mapped may be larger than a device, and most of it is never asked for.
        self._supply = supply(dataset.train, rows, device, resident=not dataset.mapped)
        self._loss = dataset.loss
        self._transform, self._personal = dataset.transform, dataset.personal
        augments(self._transform)  # or it says that it does not say
        self._rows, self._held = rows, held
        self._local, self._rate = local, rate
        self._seed, self._dtype, self._device = seed, dtype, device
        self._full_batch = full_batch
        self._early = BatchPrefetcher(self._supply, dataset.train.inputs, dtype, device)
        self._nothing = torch.empty(0, dtype=dtype, device=device)
        self.examples = [len(own) for own in rows]
        """n_i of every client."""
        self._spent = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def prefetch(self, clients: Sequence[int]) -> None:
        """Start to read these clients' examples, in this order, where they are in a file."""
        self._supply.prefetch(clients)

    def pop_elapsed_s(self) -> float:
        """Seconds that the batches of training took to come, since this was last asked."""
        spent, self._spent = self._spent, 0.0
        return round(spent, 9)

    def task(self, client: int, round: int, steps: int | None = None) -> ClientTask:
        """What ``client`` does in ``round``: the same whoever asks, whenever.

        Args:
            client: which.
            round: counted from zero.
            steps: how many instead of the job's.
        """
        count = self.examples[client]
        work = steps or self._steps(count)
        picks = partial(self._picks, client, round, count, work)
        about = Client(
            round=_number(round, torch.int64),
            steps=_number(work),
            lr=_number(self._rate(round)),
            examples=_number(count),
            full_grad=self._nothing,
            cohort_grad=self._nothing,
        )
        return ClientTask(
            client,
            round,
            about,
            self._timed(self._early(client, picks(), self._transform_of(client))),
            self._own(client),
            key(self._seed, "dropout", round, client) >> 1,
            picks(),
        )

    def example(self) -> Batch:
        """One example, without augmentation."""
        (stored,) = self._supply.stream([self._rows[0][:1]])
        return self._transformed(stored, self._transform_of(0))

    @cached_property
    def width(self) -> int:
        """Examples in the widest batch of a local step."""
        most = max(self.examples)
        return min(self._batch_size or most, most)

    @property
    def _batch_size(self) -> int | None:
        """B, or None for all of a client's examples."""
        return None if self._local.batch_size == "full" else self._local.batch_size

    def _steps(self, count: int) -> int:
        """The local steps of a client of ``count`` examples."""
        local = self._local
        return steps(
            count,
            batch_size=self._batch_size,
            epochs=local.epochs if local.epochs or local.steps else 1,
            steps=local.steps,
            drop_last=local.drop_last,
        )

    @cached_property
    def examples_per_round(self) -> NDArray[np.int64]:
        """[N], the examples that every client's local steps take in a round, repeats counted."""
        sizes, which = np.unique(self.examples, return_inverse=True)
        each = [
            taken(
                count,
                batch_size=self._batch_size,
                steps=self._steps(count),
                drop_last=self._local.drop_last,
            )
            for count in sizes.tolist()
        ]
        return np.array(each, dtype=np.int64)[which]

    def block_batches(self) -> Lay | None:
        """What lays the batches of several clients at once, out of memory.

        None where each task must be asked for its own: examples come out of a file, client by
        client, or the clients do not see them alike.
        """
        if self._personal is not None or not isinstance(self._supply, InMemory):
            return None
        gather = BlockBatches(self._supply, self._rows, self._transform, self._dtype, self._device)
        return lambda tasks, size, width: self._timed(gather(tasks, size, width))

    def _picks(self, client: int, round: int, count: int, work: int) -> Iterator[BatchIndices]:
        """What each of ``work`` steps takes of the ``count`` examples of a client."""
        cut: Any = {"batch_size": self._batch_size, "drop_last": self._local.drop_last}
        shuffle = stream(self._seed, "shuffle", round, client)
        batches = order(count, epochs=None, steps=work, generator=shuffle, **cut)
        if not augments(self._transform_of(client)):
            yield from (BatchIndices(positions, None) for positions in batches)
            return
        total = taken(count, steps=work, **cut)
        draws = stream(self._seed, "augment", round, client).integers(DRAWS, size=total)
        end = 0
        for positions in batches:
            begin, end = end, end + len(positions)
            yield BatchIndices(positions, draws[begin:end])

    def _timed(self, coming: Iterator[Item]) -> Iterator[Item]:
        """The same items; the time that they took to come is added to ``pop_elapsed_s``."""
        began = perf_counter()
        for item in coming:
            self._spent += perf_counter() - began
            yield item
            began = perf_counter()

    def training(self, client: int) -> Iterator[Batch]:
        """All examples that ``client`` trains on, without augmentation."""
        return self._rest(client, self._rows[client])

    def testing(self, client: int) -> Iterator[Batch]:
        """The examples that ``client`` holds out; where nothing is held out, as ``training``."""
        return self._rest(client, (self._held or self._rows)[client])

    @property
    def holds_out(self) -> bool:
        """Whether the clients test on other examples than they train on."""
        return self._held is not None

    def _own(self, client: int) -> Iterator[tuple[int, Batch]]:
        """The examples of a client that trains in this round; terms of the mean loss, batch."""
        count, size = self.examples[client], self._full_batch
        positions = (np.arange(k, min(k + size, count)) for k in range(0, count, size))
        transform = self._transform_of(client)
        for stored in self._supply.of_client(client, positions):
            batch = self._transformed(stored, transform)
            yield terms(self._loss, batch.labels), batch

    def _rest(self, client: int, rows: Rows) -> Iterator[Batch]:
        """Examples of a client that need not train in this round."""
        transform = self._transform_of(client)
        batches = (rows[k : k + self._full_batch] for k in range(0, len(rows), self._full_batch))
        for stored in self._supply.stream(batches):
            yield self._transformed(stored, transform)

    def _transformed(
        self, stored: Batch, transform: Transform, draws: Tensor | None = None
    ) -> Batch:
        return Batch(transform(stored.inputs, self._dtype, draws), stored.labels)

    def _transform_of(self, client: int) -> Transform:
        return self._transform if self._personal is None else self._personal(client)


@lru_cache(4096)
def _number(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """A 0-d tensor that no hook changes, so that one serves all who need that number."""
    return torch.tensor(value, dtype=dtype)
