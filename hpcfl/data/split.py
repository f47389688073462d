"""Divide the training examples of a data set: into clients, and for validation."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.holdout import draw_validation_clients, hold_out
from hpcfl.data.label_skew import LabelSkew, divide_by_label
from hpcfl.data.partition import (
    Classes,
    Contiguous,
    Dirichlet,
    DirichletPerClass,
    ExampleRows,
    File,
    Iid,
    Natural,
    Partition,
    Pooled,
    Quantity,
    RowRanges,
    Shares,
    consecutive_rows,
    sizes_of,
)
from hpcfl.data.sizes import cut, even_sizes, quantity_sizes
from hpcfl.errors import DataError, JobError
from hpcfl.io.files import read_array
from hpcfl.seeds import stream
from hpcfl.types import Examples


class Split(NamedTuple):
    """The training examples of a data set, divided; no example is in two parts."""

    rows: Sequence[ExampleRows]
    """The training examples of each client that trains."""
    held_out: Sequence[ExampleRows] | None
    """Those that each of them holds out for tests; None without ``data.holdout``."""
    validation: ExampleRows | None
    """Those kept for validation, ascending; None without ``data.validation``."""
    clients: ExampleRows | None
    """The number in the partition of each client that trains; None: all train."""
    kept_clients: int = 0
    """The number of clients that are kept for validation."""
    notes: tuple[str, ...] = ()
    """Lines for the user about the partition."""
    own_validation: Sequence[ExampleRows] | None = None
    """Those of ``validation`` that each client that trains keeps; None where clients are kept."""

    @property
    def note(self) -> str:
        """The examples that no client trains on: "8 held out, 4 for validation"; perhaps empty."""
        counts = []
        if self.held_out is not None:
            counts.append(f"{sum(map(len, self.held_out))} held out")
        if self.validation is not None:
            counts.append(f"{len(self.validation)} for validation")
        return ", ".join(counts)


def with_checked_clients(dataset: Dataset) -> Dataset:
    """The data set with the rows of its natural clients, and of their tests, as arrays of int64.

    Raises:
        JobError: rows are not among the examples, or two clients have one of them; or there are not
            as many natural tests as natural clients.
    """
    natural, tests = dataset.natural, dataset.natural_tests
    if tests is not None and (natural is None or len(tests) != len(natural)):
        wanted = "" if natural is None else f"{len(natural)}, the rows of each natural client, or "
        raise JobError(f"data: natural_tests is of length {len(tests)}, expected {wanted}None")
    return replace(
        dataset,
        natural=_checked("natural", natural, "training", dataset.train),
        natural_tests=_checked("natural_tests", tests, "test", dataset.test),
    )


def _checked(
    name: str, clients: Sequence[ExampleRows] | None, part: str, examples: Examples | None
) -> Sequence[ExampleRows] | None:
    """Refuse rows that are not among the examples, or that two clients have.

    ``RowRanges`` are made by hpcfl alone.
    """
    if clients is None or isinstance(clients, RowRanges) or not len(clients):
        return clients
    checked = []
    for client, own in enumerate(clients):
        rows = np.asarray(own)
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
            raise JobError(
                f"data: client {client} of {name} is {own!s:.40}, expected a list of its rows: "
                f"integers [n] for each client, such as [np.flatnonzero(owner == k) for k in ...]"
            )
        checked.append(rows.astype(np.int64, copy=False))
    count = 0 if examples is None else len(examples.labels)
    rows = np.concatenate(checked)
    outside = np.flatnonzero((rows < 0) | (rows >= count))
    if len(outside):
        client = np.searchsorted(np.cumsum(sizes_of(checked)), outside[0], side="right")
        raise JobError(
            f"data: client {client} of {name} has row {rows[outside[0]]}, expected rows of the "
            f"{count} {part} examples, counted from 0"
        )
    times = np.bincount(rows, minlength=1)
    if times.max() > 1:
        twice = int(times.argmax())
        raise JobError(
            f"data: {name} has row {twice} {times[twice]} times, expected each {part} example of "
            "one client at most"
        )
    return checked


def split_examples(config: DataConfig, dataset: Dataset, seed: int) -> Split:
    """Partition the examples, then take out those held out for tests, then those for validation.

    Each part is drawn from a stream of its own: ``data.validation`` changes neither the partition
    nor what a client holds out.  A client that is kept for validation brings all its examples.

    Args:
        config: the ``data`` section.
        dataset: loaded by ``config.load``.
        seed: the job's.

    Raises:
        JobError, DataError: see ``partition_examples``; or there is too little to hold out.
    """
    (rows, notes), held = partition_examples(config, dataset, seed), None
    if config.holdout is not None:
        rows, held = hold_out(rows, config.holdout, seed)
    if config.validation is None:
        return Split(rows, held, None, None, notes=notes)
    if not config.keeps_clients:
        own = seed if config.validation.seed is None else config.validation.seed
        rows, kept = hold_out(rows, config.validation.share, own, "validation")
        return Split(rows, held, _sorted(kept), None, own_validation=kept, notes=notes)
    drawn = draw_validation_clients(config.validation, len(rows), seed)
    train = np.setdiff1d(np.arange(len(rows)), drawn)
    validation = _sorted([part[client] for part in (rows, held) if part for client in drawn])
    held = None if held is None else tuple(held[client] for client in train)
    return Split(_of_clients(rows, train), held, validation, train, len(drawn), notes)


def _sorted(parts: Sequence[ExampleRows]) -> ExampleRows:
    return np.sort(np.concatenate(parts))


def partition_examples(config: DataConfig, dataset: Dataset, seed: int) -> Shares:
    """The rows of each client, none empty, no row twice.

    A partition that is not natural pools the natural clients' rows first.  Client k gets the k-th
    share: where examples were sorted by label, consecutive clients hold consecutive labels.

    Args:
        config: the partition and the number of clients.
        dataset: loaded by ``config.load``.
        seed: the job's; ``partition.seed`` overrides it.

    Raises:
        JobError: the data set has no such partition, or not for so many clients.
        DataError: the file of a partition is missing or wrong.
    """
    natural, partition = dataset.natural, effective_partition(config, dataset)
    generator = stream(seed if partition.seed is None else partition.seed, "partition")
    if isinstance(partition, Natural):
        shares = Shares(_natural(natural, config.clients, generator))
    elif isinstance(partition, File):
        shares = Shares(_file(partition, config.clients, len(dataset.train.labels)))
    else:
        pool = np.arange(len(dataset.train.labels)) if natural is None else _pooled(natural)
        default = None if natural is None else len(natural)
        population = config.partition_clients or default
        if population is None:
            raise JobError("data.clients: missing; say to how many clients the data is dealt")
        if population > len(pool):
            raise JobError(
                f"data.clients: {population} clients, but only {len(pool)} training examples: "
                f"client {len(pool)} would have none; ask for fewer"
            )
        shares = _divide(partition, dataset, pool, population, generator)
    empty = np.flatnonzero(sizes_of(shares.rows) == 0)
    if len(empty):
        raise DataError(f"data.partition: client {empty[0]} of {len(shares.rows)} has no example")
    return shares


def keep_natural_clients(config: DataConfig, dataset: Dataset, seed: int) -> Dataset:
    """The data set of ``data.natural_clients`` of its natural clients, if the job says so.

    They are those that a natural partition of the same seed draws for as many ``data.clients``.
    Their training examples keep their rows; the test set is replaced by their test examples.

    Args:
        config: the number of natural clients, and the partition, whose seed counts.
        dataset: loaded by ``config.load``.
        seed: the job's; ``partition.seed`` overrides it.

    Raises:
        JobError: the data set has not so many natural clients, or does not say whose its test
            examples are, or no test example is of a drawn client.
    """
    wanted, natural = config.natural_clients, dataset.natural
    if wanted is None:
        return dataset
    if natural is None:
        raise JobError(
            "data.natural_clients: this data set has no natural clients; remove natural_clients"
        )
    if wanted > len(natural):
        raise JobError(
            f"data.natural_clients is {wanted}, but the data set has {len(natural)} clients"
        )
    partition = effective_partition(config, dataset)
    generator = stream(seed if partition.seed is None else partition.seed, "partition")
    drawn = _draw(len(natural), wanted, generator)
    kept = _of_clients(natural, drawn)
    test, tests = _tests_of(dataset, drawn)
    tested = "" if test is None else f" and {len(test.labels)} test"
    note = (
        f"{wanted} of {len(natural)} natural clients drawn: {sizes_of(kept).sum()} training"
        f"{tested} examples are theirs, the others are not used"
    )
    return replace(
        dataset, natural=kept, test=test, natural_tests=tests, notes=(*dataset.notes, note)
    )


def _tests_of(
    dataset: Dataset, drawn: ExampleRows
) -> tuple[Examples | None, Sequence[ExampleRows] | None]:
    """The test examples of the drawn clients, client by client, and the rows of each."""
    test, owned = dataset.test, dataset.natural_tests
    if test is None:
        return None, None
    if owned is None or not isinstance(test.inputs, Tensor):
        why = "does not say whose its test examples are"
        why = why if owned is None else "keeps its test examples in a file, and all are read"
        raise JobError(
            f"data.natural_clients: this data set {why}; draw by data.clients and partition "
            "natural, and test on all"
        )
    sizes = [len(owned[k]) for k in drawn]
    if not sum(sizes):
        raise JobError(
            f"data.natural_clients: none of the {len(drawn)} drawn clients has a test example; ask "
            "for more, or set another seed"
        )
    rows = torch.from_numpy(np.concatenate([owned[k] for k in drawn]))
    return Examples(test.inputs[rows], test.labels[rows]), consecutive_rows(sizes)


def effective_partition(config: DataConfig, dataset: Dataset) -> Partition:
    """The job's partition, or natural where the data set names its clients, or else its own."""
    default = config.default_partition if dataset.natural is None else Natural
    return config.partition or default()


def _pooled(clients: Sequence[ExampleRows]) -> ExampleRows:
    """The rows of all clients, one client after the other.

    Copied into one array client by client, as a second copy of all rows may not fit in memory.
    """
    ends = np.cumsum(sizes_of(clients))
    pool = np.empty(ends[-1], dtype=np.int64)
    for rows, end in zip(clients, ends.tolist(), strict=True):
        pool[end - len(rows) : end] = rows
    return pool


def _divide(
    partition: Iid | Contiguous | Quantity | LabelSkew | Pooled,
    dataset: Dataset,
    pool: ExampleRows,
    population: int,
    generator: np.random.Generator,
) -> Shares:
    """Divide the pool by ``partition``."""
    if isinstance(partition, Pooled):
        pool.sort()
        return Shares((pool,))
    sizes = even_sizes(len(pool), population)
    if isinstance(partition, Contiguous):
        return Shares(cut(pool, sizes))
    shuffled = generator.permutation(pool)
    if isinstance(partition, Iid):
        if partition.examples is not None:
            needed = population * partition.examples
            if needed > len(pool):
                raise JobError(
                    f"data.partition.examples: {population} clients of {partition.examples} need "
                    f"{needed} training examples, the data has {len(pool)}"
                )
            sizes = np.full(population, partition.examples)
        return Shares(cut(shuffled, sizes))
    if isinstance(partition, Quantity):
        sizes = quantity_sizes(partition, len(pool), population, generator)
        return Shares(cut(shuffled, sizes))
    labels = _labels(dataset, partition)
    return divide_by_label(partition, shuffled, labels, population, generator)


def _labels(dataset: Dataset, partition: Partition) -> NDArray[Any]:
    """The label of every training example, to sort or to stratify by."""
    labels = dataset.train.labels.numpy()
    # The others only sort, for which targets of a regression will do.
    by_class = isinstance(partition, DirichletPerClass | Classes) or (
        isinstance(partition, Dirichlet) and partition.alpha > 0
    )
    several = labels.size != len(labels) or dataset.loss in ("tokens", "bits")
    if several or (by_class and dataset.classes is None):
        has = f"labels of shape {[*labels.shape[1:]]} of each" if several else "none"
        raise JobError(
            f"data.partition.kind: {partition.kind} needs one label per example, "
            f"this data set has {has}; use iid"
        )
    return labels.reshape(-1)


def _natural(
    natural: Sequence[ExampleRows] | None, wanted: int | None, generator: np.random.Generator
) -> Sequence[ExampleRows]:
    """All natural clients, or ``wanted`` of them, drawn without replacement, in their own order."""
    if natural is None:
        raise JobError("data.partition.kind: this data set has no natural clients; use iid")
    if wanted is None:
        return natural
    if wanted > len(natural):
        raise JobError(
            f"data.clients is {wanted}, but the data set has {len(natural)} clients; ask for "
            "fewer, or set partition to iid"
        )
    return _of_clients(natural, _draw(len(natural), wanted, generator))


def tests_of_clients(
    config: DataConfig, dataset: Dataset, split: Split, seed: int
) -> Sequence[ExampleRows] | None:
    """The rows of the test examples of each client that trains.

    None where the data does not say whose its test examples are (or none is of a client that has
    training examples), or where the clients are not the natural ones.

    Args:
        config: the ``data`` section.
        dataset: loaded by ``config.load``.
        split: of the job, by ``split_examples``.
        seed: the job's.
    """
    tests, partition = dataset.natural_tests, effective_partition(config, dataset)
    if tests is None or not isinstance(partition, Natural) or not sizes_of(tests).any():
        return None
    numbers = np.arange(len(tests))  # the natural client of each client that trains
    if config.clients is not None:
        generator = stream(seed if partition.seed is None else partition.seed, "partition")
        numbers = _draw(len(tests), config.clients, generator)
    if split.clients is not None:
        numbers = numbers[split.clients]
    return _of_clients(tests, numbers)


def _draw(population: int, wanted: int, generator: np.random.Generator) -> ExampleRows:
    """``wanted`` of the natural clients, drawn without replacement, ascending."""
    return np.sort(generator.choice(population, size=wanted, replace=False))


def _of_clients(natural: Sequence[ExampleRows], drawn: ExampleRows) -> Sequence[ExampleRows]:
    return natural[drawn] if isinstance(natural, RowRanges) else tuple(natural[k] for k in drawn)


def _file(partition: File, wanted: int | None, examples: int) -> tuple[ExampleRows, ...]:
    """The partition in a file."""
    path = Path(partition.path)
    client = read_array(path, partition.key, default="client")
    if client.shape != (examples,) or client.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {client.dtype} of shape {client.shape}, expected the client of each of the "
            f"{examples} training examples, as integers of shape ({examples},)"
        )
    # 255 means "no client" in files of one byte only; elsewhere it is a client.
    used = np.flatnonzero(client != 255 if client.dtype == np.uint8 else client != -1)
    owner = client[used].astype(np.int64)
    if not len(owner) or owner.min() < 0:
        raise DataError(f"{path}: expected clients counted from 0, -1 for none; found no such id")
    population = int(owner.max()) + 1
    if population > len(owner):
        raise DataError(
            f"{path}: holds client {owner.max()}, but {len(owner)} examples cannot fill so many "
            "clients; they are counted from 0 without a gap"
        )
    if wanted is not None and wanted != population:
        raise DataError(f"{path}: a split over {population} clients, but data.clients is {wanted}")
    order = np.argsort(owner, kind="stable")
    return cut(used[order], np.bincount(owner))
