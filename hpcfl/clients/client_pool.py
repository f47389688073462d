"""The simulated clients: the examples of each, and its task in a round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from math import inf
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfl.algorithms.facts import Client
from hpcfl.clients.examples import ExampleSource, InMemory, example_source, resident
from hpcfl.clients.padded_batches import MAX_INDICES, BlockBatches, Stack
from hpcfl.clients.participation import OF_JOB
from hpcfl.clients.prefetch import BatchPrefetcher, JoinedClients, groups_of
from hpcfl.clients.section import Local
from hpcfl.clients.task import BatchIndices, ClientTask, number
from hpcfl.data.base import DRAWS, Dataset, Transform, augments
from hpcfl.data.batches import examples_in_batches, order, steps_of_passes
from hpcfl.data.partition import ExampleRows
from hpcfl.models.losses import loss_of
from hpcfl.seeds import key, stream
from hpcfl.types import Batch, IntArray

Item = TypeVar("Item")


class ClientTests(NamedTuple):
    """The examples that each client is scored on."""

    data: Literal["holdout", "test", "train"]
    """Where they are from: training examples that the clients hold out, the data set's test
    examples of these clients, or what they train on."""
    rows: Sequence[ExampleRows]
    """The rows of each client among the test examples, or the training examples."""


class ClientData(NamedTuple):
    """A data set, divided among clients."""

    dataset: Dataset
    rows: Sequence[ExampleRows]
    """The training examples of each client."""
    tests: ClientTests
    validation: Sequence[ExampleRows] | None = None
    """Those of its training examples that each keeps for validation; None if none does."""


class ClientPool:
    """All clients, over one copy of the training examples on the rank's device.

    Every draw of a task comes from a generator of its own, seeded by the job's seed, the purpose,
    the round and the client.  A task is thus the same on every rank, after a resume, and whichever
    tasks were made before it.

    Args:
        data: the clients' examples.
        local: the job's local section.
        local_lr: the learning rate eta of a round and a local step of it, counted from zero.
        seed: the job's.
        dtype: of the model.
        device: of the batches.
        full_batch: examples in a batch where all examples of a client are needed.
    """

    def __init__(
        self,
        data: ClientData,
        local: Local,
        *,
        local_lr: Callable[[int, int], float],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        full_batch: int,
        count_labels: int | None = None,
    ) -> None:
        dataset, self._rows, self._tests, self._validation = data
        train = resident(dataset.train, device, mapped=dataset.mapped)
        self.train_source = example_source(train, data.rows, device)
        """Reads the training examples, which are on the device where they fit."""
        self._test_set, self._mapped = dataset.test, dataset.mapped
        self._loss = loss_of(dataset.loss, dataset.padding)
        self._transform, self._personal = dataset.transform, dataset.personal
        augments(self._transform)  # refuse a wrong transform now, not in the first round
        self._local, self._local_lr = local, local_lr
        self.seed, self._dtype, self._device = seed, dtype, device
        self._full_batch, self._classes = full_batch, count_labels
        self._labels = dataset.train.labels
        self._prefetcher = BatchPrefetcher(self.train_source, dataset.train.inputs, dtype, device)
        self.examples = [len(rows) for rows in data.rows]
        """n_i of every client."""
        self._made: dict[tuple[int, int, int], list[BatchIndices]] = {}  # by client, round, steps
        self._elapsed_s = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def prefetch(self, clients: Sequence[int]) -> None:
        """Start to read these clients' examples, in this order, where they are in a file."""
        self.train_source.prefetch(clients)

    def make_ahead(self, clients: Sequence[int], round: int) -> None:
        """Make the batch indices of the next round now, where a GPU trains meanwhile.

        Up to ``MAX_INDICES``; the tasks of that round take them, and make the others.
        """
        self._made.clear()
        left = MAX_INDICES if self._device.type == "cuda" else 0
        for client in clients:
            left -= int(self.examples_per_round[client])
            if left < 0:
                return
            count = self.examples[client]
            steps = self._steps(count)
            indices = self._make_indices(client, round, count, steps)
            self._made[client, round, steps] = list(indices)

    def pop_elapsed_s(self) -> float:
        """Seconds that making the batches of training took since the last call."""
        elapsed, self._elapsed_s = self._elapsed_s, 0.0
        return round(elapsed, 9)

    def task(self, client: int, round: int, steps: int | None = None) -> ClientTask:
        """The task of ``client`` in ``round``: the same at every call, on every rank.

        Args:
            client: its number.
            round: counted from zero.
            steps: the number of local steps, instead of the job's.
        """
        count = self.examples[client]
        steps = steps or self._steps(count)
        indices = self._batch_indices(client, round, count, steps)
        batches = self._prefetcher(client, indices, self._transform_of(client))
        return self._task(client, round, steps, batches)

    def task_apart(self, client: int, round: int, steps: int) -> ClientTask:
        """As ``task``, between two rounds: it leaves the reader's order of clients as it is."""
        rows, transform = self._batch_rows(client, round, steps), self._transform_of(client)
        made = (self._prefetcher.batches([step], transform) for step in rows)
        return self._task(client, round, steps, chain.from_iterable(made))

    def tasks(
        self, clients: Sequence[int], round: int, steps: Mapping[int, int] = OF_JOB
    ) -> list[ClientTask]:
        """The tasks of these clients in ``round``, as ``task`` gives each.

        Where one transform of examples in memory serves all clients, the batches of consecutive
        small ones are made together.

        Args:
            clients: their numbers.
            round: counted from zero.
            steps: the local steps of those that take fewer than the job's.
        """
        if self._shared is None:
            return [self.task(client, round, steps.get(client)) for client in clients]
        sizes = {client: self.examples_in(client, steps.get(client)) for client in clients}
        tasks = []
        for group in groups_of(clients, sizes.__getitem__, self._prefetcher.most):
            if len(group) == 1:
                tasks.append(self.task(group[0], round, steps.get(group[0])))
                continue
            steps_of = {i: steps.get(i) or self._steps(self.examples[i]) for i in group}
            rows = [self._batch_rows(client, round, count) for client, count in steps_of.items()]
            joined = JoinedClients(self._prefetcher, rows, self._transform)
            tasks += [
                self._task(client, round, count, joined.of(k))
                for k, (client, count) in enumerate(steps_of.items())
            ]
        return tasks

    def _task(self, client: int, round: int, steps: int, batches: Iterator[Batch]) -> ClientTask:
        """The task of a client with ``steps`` local steps on these batches."""
        count, lr = self.examples[client], self._local_lr(round, 0)
        by_step = self._local.step_schedule is not None
        return ClientTask(
            client_id=client,
            round=round,
            seed=self.seed,
            client=Client(
                round=number(round),
                step=number(0),
                steps=number(steps),
                lr=number(lr),
                examples=number(count),
                label_counts=self._label_counts(client),
            ),
            steps=steps,
            lr=lr,
            batches=self._timed(batches, steps),
            full_batches=self._full_batches(client),
            # key() fits an int64; one bit less, so that adding the step number cannot overflow.
            dropout_seed=key(self.seed, "dropout", round, client) >> 1,
            batch_indices=self._batch_indices(client, round, count, steps),
            lr_of_step=partial(self._local_lr, round) if by_step else None,
        )

    def examples_to_try(self) -> Batch:
        """Two examples, of the first and the last client, without augmentation."""
        rows = np.concatenate([self._rows[0][:1], self._rows[len(self._rows) - 1][-1:]])
        (stored,) = self.train_source.stream([rows])
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
        return local.steps or steps_of_passes(
            count,
            batch_size=self._batch_size,
            epochs=local.epochs or 1,
            drop_last=local.drop_last,
        )

    def with_batch_of_one(self, steps: int) -> int | None:
        """The first client that takes a local step on a batch of one example; None: none does.

        Args:
            steps: that a client takes at once, if not those of a round, which are more.
        """
        lone = self._by_size(lambda count: int(self._has_batch_of_one(count, steps)))
        return int(lone.argmax()) if lone.any() else None

    def _has_batch_of_one(self, count: int, steps: int) -> bool:
        """Whether a client of ``count`` examples has such a batch."""
        size, drop_last = self._batch_size or count, self._local.drop_last
        last_step = steps_of_passes(count, batch_size=size, epochs=1, drop_last=drop_last)
        if min(count, size) == 1:
            return True
        return count % size == 1 and not drop_last and max(self._steps(count), steps) >= last_step

    @cached_property
    def steps_per_round(self) -> IntArray:
        """[N], the local steps of a round of every client."""
        return self._by_size(self._steps)

    @cached_property
    def examples_per_round(self) -> IntArray:
        """[N], the examples in all batches of a round of every client, repeats counted."""
        return self._by_size(lambda count: self._examples_in(count, self._steps(count)))

    def examples_in(self, client: int, steps: int | None) -> int:
        """The examples in the batches of so many steps of a client; None: of all of a round."""
        if steps is None:
            return int(self.examples_per_round[client])
        return self._examples_in(self.examples[client], steps)

    def _examples_in(self, count: int, steps: int) -> int:
        return examples_in_batches(
            count, batch_size=self._batch_size, steps=steps, drop_last=self._local.drop_last
        )

    def work_of(self, clients: IntArray, steps: Mapping[int, int] = OF_JOB) -> dict[str, int]:
        """The examples and the steps of a round of all of these clients, as the log has them.

        Args:
            clients: their numbers.
            steps: of those of them that take fewer than the job's.
        """
        fewer = list(steps)
        saved = sum(self.examples_in(i, None) - self.examples_in(i, steps[i]) for i in fewer)
        left_out = int(self.steps_per_round[fewer].sum()) - sum(steps.values())
        return {
            "examples": int(self.examples_per_round[clients].sum()) - saved,
            "steps": int(self.steps_per_round[clients].sum()) - left_out,
        }

    def _by_size(self, number: Callable[[int], int]) -> IntArray:
        """[N], for every client the number that follows from how many examples it has."""
        sizes, which = np.unique(self.examples, return_inverse=True)
        return np.array([number(count) for count in sizes.tolist()], dtype=np.int64)[which]

    @property
    def _shared(self) -> InMemory | None:
        """The examples, where one gather and one transform can serve several clients; else None."""
        source = self.train_source
        return source if self._personal is None and isinstance(source, InMemory) else None

    def block_batches(self) -> Stack | None:
        """A function that gathers the batches of several clients at once.

        None where the batches must be made task by task: the examples are in a file that is read
        client by client, or the clients have different transforms.
        """
        if self._shared is None:
            return None
        gather = BlockBatches(self._shared, self._rows, self._transform, self._dtype, self._device)
        return lambda tasks, size, width: self._timed(gather(tasks, size, width))

    def _batch_indices(
        self, client: int, round: int, count: int, steps: int
    ) -> Iterator[BatchIndices]:
        """The indices of ``steps`` local steps of a client of ``count`` examples."""
        made = self._made.pop((client, round, steps), None)
        yield from self._make_indices(client, round, count, steps) if made is None else made

    def _make_indices(
        self, client: int, round: int, count: int, steps: int
    ) -> Iterator[BatchIndices]:
        cut: Any = {"batch_size": self._batch_size, "drop_last": self._local.drop_last}
        shuffle = partial(stream, self.seed, "shuffle", round, client)
        batches = order(count, steps=steps, generator=shuffle, **cut)
        if not augments(self._transform_of(client)):
            yield from (BatchIndices(positions, None) for positions in batches)
            return
        # All draws of the round at once: generators are slow for a few numbers at a time.
        total = examples_in_batches(count, steps=steps, **cut)
        draws = stream(self.seed, "augment", round, client).integers(DRAWS, size=total)
        end = 0
        for positions in batches:
            begin, end = end, end + len(positions)
            yield BatchIndices(positions, draws[begin:end])

    def _batch_rows(self, client: int, round: int, steps: int) -> Iterator[BatchIndices]:
        """As ``_batch_indices``, but with rows of the data set in place of positions."""
        own = self._rows[client]
        for step in self._batch_indices(client, round, len(own), steps):
            yield BatchIndices(own[step.positions], step.draws)

    def _timed(self, items: Iterator[Item], count: float = inf) -> Iterator[Item]:
        """The same items, ``count`` of them; their time is added to ``pop_elapsed_s``."""
        return _Timed(items, count, self._add_elapsed)

    def _add_elapsed(self, seconds: float) -> None:
        self._elapsed_s += seconds

    def training(self, client: int) -> Iterator[Batch]:
        """All training examples of ``client``, without augmentation."""
        return self._stream(client, self.train_source, self._rows[client])

    def testing(self, client: int) -> Iterator[Batch]:
        """The examples that ``client`` is scored on, see ``ClientTests``; perhaps none."""
        source = self.test_source if self.tested_on == "test" else self.train_source
        return self._stream(client, source, self._tests.rows[client])

    def tests_of(self, client: int) -> int:
        """The number of examples that ``client`` is scored on."""
        return len(self._tests.rows[client])

    @property
    def validates(self) -> bool:
        """Whether clients have validation data of their own."""
        return self._validation is not None

    def validating(self, client: int) -> Iterator[Batch]:
        """The validation examples of ``client``."""
        return self._stream(client, self.train_source, self._validation_rows(client))

    def validations_of(self, client: int) -> int:
        """The number of validation examples of ``client``."""
        return len(self._validation_rows(client))

    def _validation_rows(self, client: int) -> ExampleRows:
        return self._rows[client][:0] if self._validation is None else self._validation[client]

    @property
    def tested_on(self) -> Literal["holdout", "test", "train"]:
        """Where the examples are from that clients are scored on."""
        return self._tests.data

    @cached_property
    def test_source(self) -> ExampleSource:
        """Reads the test examples, which are on the device from the first use on where they fit."""
        if self._test_set is None:
            raise ValueError("the data set has no test examples")
        examples = resident(self._test_set, self._device, mapped=self._mapped)
        return example_source(examples, (), self._device)

    def _full_batches(self, client: int) -> Iterator[tuple[int, Batch]]:
        """All examples of a client that trains in this round; see ``ClientTask``."""
        count, size = self.examples[client], self._full_batch
        positions = (np.arange(k, min(k + size, count)) for k in range(0, count, size))
        transform = self._transform_of(client)
        for stored in self.train_source.of_client(client, positions):
            batch = self._transformed(stored, transform)
            yield self._loss.count(batch.labels), batch

    def _label_counts(self, client: int) -> Tensor | None:
        """[classes], the client's labels of each class; None unless they are asked for."""
        if self._classes is None:
            return None
        own = self._labels[torch.as_tensor(self._rows[client])].flatten().long().cpu()
        if self._loss.padding is not None:
            own = own[own != self._loss.padding]
        counts = torch.bincount(own, minlength=self._classes)
        return counts.to(self._device, self._dtype)

    def _stream(self, client: int, source: ExampleSource, rows: ExampleRows) -> Iterator[Batch]:
        """Examples of a client outside its training: the reader need not keep them."""
        transform = self._transform_of(client)
        batches = (rows[k : k + self._full_batch] for k in range(0, len(rows), self._full_batch))
        for stored in source.stream(batches):
            yield self._transformed(stored, transform)

    def _transformed(
        self, stored: Batch, transform: Transform, draws: Tensor | None = None
    ) -> Batch:
        return Batch(transform(stored.inputs, self._dtype, draws), stored.labels)

    def _transform_of(self, client: int) -> Transform:
        return self._transform if self._personal is None else self._personal(client)


class _Timed(Iterator[Item]):
    """An iterator that passes the seconds that each item takes to a function.

    With the last item it drops the iterator behind it: a task lives until the end of its round,
    and its examples as stored, or its last batch, would live as long.

    Args:
        items: to iterate over.
        count: of the items, or more.
        add: takes the seconds.
    """

    def __init__(self, items: Iterator[Item], count: float, add: Callable[[float], None]) -> None:
        self._items, self._left, self._add = items, count, add

    def __next__(self) -> Item:
        began = perf_counter()
        item = next(self._items)
        self._add(perf_counter() - began)
        self._left -= 1
        if not self._left:
            self._items = iter(())
        return item
