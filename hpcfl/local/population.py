"""The simulated clients: whose examples are whose, and what a visit to one of them consists of."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.algorithms.base import Client
from hpcfl.data.base import Dataset
from hpcfl.data.batches import order, steps
from hpcfl.data.partition import Rows
from hpcfl.local.step import Local, Visit
from hpcfl.seeds import key, stream, torch_stream
from hpcfl.types import Batch


class Population:
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
        self._inputs = dataset.train.inputs.to(device)
        self._labels = dataset.train.labels.to(device)
        self._transform = dataset.transform
        self._rows, self._held = rows, held
        self._local, self._rate = local, rate
        self._seed, self._dtype, self._device = seed, dtype, device
        self._full_batch = full_batch
        self._nothing = torch.empty(0, dtype=dtype, device=device)
        self.examples = [len(own) for own in rows]
        """n_i of every client."""

    def __len__(self) -> int:
        return len(self._rows)

    def visit(self, client: int, round: int) -> Visit:
        """What ``client`` does in ``round``: the same whoever asks, whenever."""
        count = self.examples[client]
        local = self._local
        batch_size = None if local.batch_size == "full" else local.batch_size
        work = steps(
            count,
            batch_size=batch_size,
            epochs=local.epochs if local.epochs or local.steps else 1,
            steps=local.steps,
            drop_last=local.drop_last,
        )
        about = Client(
            round=torch.tensor(round, dtype=torch.int64),
            steps=torch.tensor(work, dtype=torch.float64),
            lr=torch.tensor(self._rate(round), dtype=torch.float64),
            examples=torch.tensor(count, dtype=torch.float64),
            full_grad=self._nothing,
            cohort_grad=self._nothing,
        )
        return Visit(
            client,
            round,
            about,
            self._batches(client, round, count, batch_size, work),
            self._whole(self._rows[client]),
            key(self._seed, "dropout", round, client) >> 1,
        )

    def _batches(
        self, client: int, round: int, count: int, batch_size: int | None, work: int
    ) -> Iterator[Batch]:
        shuffle = stream(self._seed, "shuffle", round, client)
        augment = torch_stream(self._seed, "augment", round, client, self._device)
        for positions in order(
            count,
            batch_size=batch_size,
            epochs=None,
            steps=work,
            drop_last=self._local.drop_last,
            generator=shuffle,
        ):
            yield self._batch(self._rows[client][positions], augment)

    def training(self, client: int) -> Iterator[Batch]:
        """All examples that ``client`` trains on, without augmentation."""
        return (batch for _, batch in self._whole(self._rows[client]))

    def testing(self, client: int) -> Iterator[Batch]:
        """The examples that ``client`` holds out; where nothing is held out, as ``training``."""
        rows = self._rows if self._held is None else self._held
        return (batch for _, batch in self._whole(rows[client]))

    @property
    def holds_out(self) -> bool:
        """Whether the clients test on other examples than they train on."""
        return self._held is not None

    def _whole(self, own: Rows) -> Iterator[tuple[int, Batch]]:
        for start in range(0, len(own), self._full_batch):
            rows = own[start : start + self._full_batch]
            yield len(rows), self._batch(rows, None)

    def _batch(self, rows: Rows, augment: torch.Generator | None) -> Batch:
        chosen = torch.from_numpy(np.ascontiguousarray(rows)).to(self._device)
        inputs = self._inputs.index_select(0, chosen)
        return Batch(self._transform(inputs, self._dtype, augment), self._labels[chosen])


class TestSet:
    """The test examples of one rank: every size-th batch of the whole test set."""

    def __init__(
        self, dataset: Dataset, *, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._examples = dataset.test
        self._transform = dataset.transform
        self._batch_size, self._dtype, self._device = batch_size, dtype, device

    def __len__(self) -> int:
        return len(self._examples.labels) if self._examples else 0

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Batches number ``rank``, ``rank + ranks``, ...; none where there is no test set."""
        if self._examples is None:
            return
        inputs, labels = self._examples
        for start in range(rank * self._batch_size, len(labels), ranks * self._batch_size):
            own = slice(start, start + self._batch_size)
            rows: Tensor = inputs[own].to(self._device)
            yield Batch(self._transform(rows, self._dtype, None), labels[own].to(self._device))
