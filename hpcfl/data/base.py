"""The interface of a data set."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.download import Track
from hpcfl.data.holdout import Validation
from hpcfl.data.named_inputs import NamedInputs
from hpcfl.data.partition import Contiguous, ExampleRows, File, Iid, Natural, Partition, Pooled
from hpcfl.errors import JobError
from hpcfl.types import Count, Examples, LossName, Part, Section

DRAWS = 2**63  # an example's draw is a number below


class Transform(Protocol):
    """Makes model inputs from stored rows, each from its own row alone.

    A transform that is an object has an attribute ``augment``: whether it uses draws.  A plain
    function uses none.
    """

    def __call__(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
        """Model inputs [B, ...] of ``dtype`` from stored rows [B, ...], on the rows' device.

        Args:
            inputs: the rows.
            dtype: of the model.
            draws: [B] int64 on the same device, a random number from 0 to 2^63 - 1 for each
                example, the only source of its augmentation; None: no augmentation.
        """
        ...


def augments(transform: Transform) -> bool:
    """Whether the transform uses draws.

    Raises:
        JobError: it is an object without a boolean attribute ``augment``.
    """
    if isfunction(transform):
        return False
    found = getattr(transform, "augment", None)
    if not isinstance(found, bool):
        name = type(transform).__name__
        raise JobError(
            f"data: the transform {name} does not say whether it takes draws in training; give it "
            "an attribute augment, True or False"
        )
    return found


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, or mapped into memory, before it is divided among clients."""

    train: Examples
    test: Examples | None
    natural: Sequence[ExampleRows] | None
    """The rows of each natural client, or None where the data set names no clients."""
    classes: int | None
    """Number of classes, or None where labels are targets or bits."""
    loss: LossName
    """What labels are: ``cross_entropy`` one class an example [n], ``tokens`` classes [n, ...],
    ``squared`` targets [n, ...], ``bits`` booleans [n, t]."""
    transform: Transform
    named: NamedInputs | None = None
    """The inputs that a model takes by name, where the rows hold several; None: one input."""
    columns: tuple[str, ...] = ()
    """The names of the columns of one input [n, columns], where they have names."""
    natural_tests: Sequence[ExampleRows] | None = None
    """The test examples of each natural client, perhaps none, in the order of ``natural``; None
    where the data does not say whose they are."""
    personal: Callable[[int], Transform] | None = None
    """Client -> its transform, where transforms differ; None: all clients have ``transform``.  The
    scores of the whole test set have ``transform``, those of a client its own."""
    mapped: bool = False
    """Whether the examples are in a file that is mapped into memory: the system loads its pages
    when they are used, and drops them when memory is short."""
    origin: str = ""
    """What a prepared file was made from, and its size, which a resume compares
    in the place of the examples (``hpcfl.data.prepared_file.origin_and_size``)."""
    digest: str = ""
    """The digest of all examples and their clients, once a run has loaded them."""
    notes: tuple[str, ...] = ()
    """Lines for the user, printed when a run starts, and by ``hpcfl check --data``."""
    padding: int | None = None
    """Of ``tokens``: the label of padding, a class or not, which is left out of losses and scores;
    None: every label counts."""
    scored: range | None = None
    """Of ``tokens``: the classes whose labels the accuracies are of; None: all."""

    def sample(self, count: int) -> Tensor:
        """A copy of the first so many training inputs [count, ...], as stored."""
        inputs = self.train.inputs
        if isinstance(inputs, Tensor):
            return inputs[:count].clone()
        return inputs.read(np.arange(count))

    @property
    def guess_loss(self) -> float | None:
        """The mean training loss of a model that knows nothing; None where there is none such."""
        if self.loss == "quadratic":
            return None
        if self.classes is not None:
            return math.log(self.classes)
        if self.loss == "bits":
            return math.log(2) * self.train.labels.shape[1]
        labels = self.train.labels.double()
        loss = float(labels.square().sum() / (2 * len(labels)))
        return loss if 0 < loss < math.inf else None

    @property
    def sizes_text(self) -> str:
        """Its size: "100 clients, 50000 training and 10000 test examples, 10 classes"."""
        clients = "" if self.natural is None else f"{len(self.natural)} clients, "
        tested = "" if self.test is None else f" and {len(self.test.labels)} test"
        classes = "" if self.classes is None else f", {self.classes} classes"
        return f"{clients}{len(self.train.labels)} training{tested} examples{classes}"


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    """The ``data`` section of a job; a data set's own keys are the fields of its subclass."""

    names_clients: ClassVar[bool | None] = None
    """Whether the data set says whose each example is; None: only its files tell."""
    maps_files: ClassVar[bool] = False
    """Whether ``load`` only maps prepared files into memory: every rank then calls it at once.
    Otherwise one rank of each host does, and the others share the memory of what it returns
    (``hpcfl.data.host_copy``)."""

    default_partition: ClassVar[type[Contiguous | Iid]] = Iid
    """How examples that are nobody's are divided when the job does not say."""

    clients: Count | None = None
    """N: number of clients that the examples are divided among, or drawn of natural clients."""
    natural_clients: Count | None = None
    """Use the examples of so many natural clients alone, drawn at random: in every partition, in
    ``pooled`` too, and for tests."""
    partition: Partition | None = None
    """How to divide the training examples; when absent, natural if the data set names its clients,
    else contiguous of kind text and iid of others."""
    holdout: Part | None = None
    """The share of each client's examples that is held out of training, for tests."""
    validation: Validation | None = None
    """Training data that is kept for choices: of the best round, of a rate."""

    def __post_init__(self) -> None:
        if isinstance(self.partition, Pooled) and self.clients not in (None, 1):
            raise ValueError(
                f"clients is {self.clients}, but the partition is pooled: one client holds "
                "everything; set clients to null"
            )
        if self.names_clients is False:
            if isinstance(self.partition, Natural):
                raise ValueError(
                    "partition.kind is natural, but this data set does not say whose its examples "
                    "are; use iid or another kind"
                )
            if self.natural_clients is not None:
                raise ValueError(
                    f"natural_clients is {self.natural_clients}, but this data set does not say "
                    "whose its examples are; use clients"
                )
        if isinstance(self.partition, File) and self.natural_clients is not None:
            raise ValueError(
                f"natural_clients is {self.natural_clients}, but the file of the partition says "
                "which examples are used; remove one of them"
            )
        if self.partition_clients == 1 and self.keeps_clients:
            raise ValueError(
                "validation.of is clients, but one client holds everything; say "
                "validation.of: examples"
            )

    @property
    def keeps_clients(self) -> bool:
        """Whether whole clients are kept for validation."""
        return self.validation is not None and self.validation.of == "clients"

    @property
    def population(self) -> int | None:
        """N: the number of clients that train, or None where it follows from the data."""
        dealt = self.partition_clients
        if dealt is None or self.validation is None:
            return dealt
        return dealt - self.validation.clients_of(dealt)

    @property
    def partition_clients(self) -> int | None:
        """The number of clients of the partition, also those that are kept for validation."""
        if isinstance(self.partition, Pooled):
            return 1
        return self.natural_clients if self.clients is None else self.clients

    @property
    def padded_text(self) -> bool | None:
        """Whether its texts end with padding, class 0; None: it has none, or nobody says."""
        return None

    def fetch(self) -> None:
        """Download files that ``load`` needs; called before it, on one rank only.

        Raises:
            DataError: they cannot be downloaded.
        """

    def prepare(self, track: Track) -> Path:
        """Fetch or find the publisher's files, check them, and make the file that jobs read.

        Work of an earlier call is not repeated.

        Returns:
            The file or folder that is ready for jobs.

        Raises:
            DataError: a file is missing (the message says where it belongs) or damaged.
            JobError: there is nothing to prepare.
        """
        raise JobError(
            "data prepare: this data set needs no preparation: jobs read its files as they are"
        )

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Read the data set; what training needs of it is in the ``Dataset`` alone.

        With several ranks on a host, one of them calls it, see ``maps_files``.

        Args:
            seed: the job's, for data that is itself drawn at random.

        Raises:
            DataError: a file is missing, damaged or of another kind.
        """
