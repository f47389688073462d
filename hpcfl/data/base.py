"""The interface of a data set."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from hpcfl.data.download import Track
from hpcfl.data.inputs import InputFile
from hpcfl.data.partition import Partition, Pooled, Rows
from hpcfl.errors import JobError
from hpcfl.types import Count, Examples, Section

Part = Annotated[float, Interval(gt=0, lt=1)]
LossName = Literal["cross_entropy", "tokens", "squared", "quadratic"]


DRAWS = 2**63  # how many numbers an example's draw may be


class Transform(Protocol):
    """Stored rows to model inputs, each from its own row alone.

    An object has an attribute ``augment``: whether it takes draws.  A plain function takes none.
    """

    def __call__(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
        """Model inputs [B, ...] of ``dtype`` from stored rows [B, ...], on the rows' device.

        Args:
            inputs: the rows.
            dtype: of the model.
            draws: [B] int64 on the same device, a random number from 0 to 2^63 - 1 for each
                example, all that its augmentation may depend on; None means no augmentation.
        """
        ...


def augments(transform: Transform) -> bool:
    """Whether the transform takes draws.

    Raises:
        JobError: it is an object that does not say so.
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
    """A data set in memory (or memory-mapped), before it is dealt to clients."""

    train: Examples
    test: Examples | None
    natural: Sequence[Rows] | None
    """The rows of each natural client, or None where the data has no owners."""
    classes: int | None
    """Number of classes, or None for regression."""
    loss: LossName
    transform: Transform
    personal: Callable[[int], Transform] | None = None
    """A client's own transform, where clients do not see alike; ``transform`` for all if None."""
    mapped: bool = False
    """Whether the examples lie in a file that the system maps into memory as far as there is room,
    and so take none of their own."""
    notes: tuple[str, ...] = ()
    """What a person should know of them: said when a run starts, and by ``hpcfl check --data``."""

    def sample(self, count: int) -> Tensor:
        """The first so many training inputs [count, ...], as stored."""
        inputs = self.train.inputs
        return inputs[:count] if isinstance(inputs, Tensor) else inputs.read(np.arange(count))


def counted(data: Dataset) -> str:
    """How much there is: "100 clients, 50000 training and 10000 test examples, 10 classes"."""
    clients = "" if data.natural is None else f"{len(data.natural)} clients, "
    tested = "" if data.test is None else f" and {len(data.test.labels)} test"
    classes = "" if data.classes is None else f", {data.classes} classes"
    return f"{clients}{len(data.train.labels)} training{tested} examples{classes}"


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    """The ``data`` section of a job; a data set's own keys are the fields of its subclass."""

    clients: Count | None = None
    """N: how many clients the examples are dealt to; of a natural split, how many are drawn."""
    partition: Partition | None = None
    """How the training examples are dealt; when absent, natural if the data has owners, or iid."""
    holdout: Part | None = None
    """The share of each client's examples that it keeps back from training, to be tested on."""

    def __post_init__(self) -> None:
        if isinstance(self.partition, Pooled) and self.clients not in (None, 1):
            raise ValueError(
                f"clients is {self.clients}, but the partition is pooled: one client holds "
                "everything; say 1 or null"
            )

    @property
    def population(self) -> int | None:
        """N, or None where only the data knows it."""
        return 1 if isinstance(self.partition, Pooled) else self.clients

    def fetch(self) -> None:
        """Bring files that ``load`` needs into place; called before it, on one rank alone.

        Raises:
            DataError: they cannot be had.
        """

    def prepare(self, track: Track) -> Path:
        """Fetch or find the owners' files, check them, make the file that ranks read by client.

        What an earlier call has done is not done again.

        Returns:
            The file or folder that is now ready.

        Raises:
            DataError: a file is missing, and where it belongs; or it is damaged.
            JobError: there is nothing to prepare.
        """
        raise JobError(
            "data prepare: this data set needs no preparation: jobs read its files as they are"
        )

    def input_files(self) -> Sequence[InputFile] | None:
        """The files that ``load`` reads, once they are fetched; none where it draws its examples.

        A run records their contents when it starts, and goes on only from the same ones.  None (the
        default) is for a class that does not tell: every start then digests what ``load`` returns,
        which takes longer.  A file that is not there may be among them: ``load`` refuses it.
        """
        return None

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Read the data set.

        Args:
            seed: the job's, for data that is itself drawn at random.

        Raises:
            DataError: a file is missing, damaged or not what it should be.
        """
