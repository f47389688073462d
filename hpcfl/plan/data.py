"""The data of a job that is planned: what is there, or a stand-in of sizes that the user states.

A stand-in has the stated numbers and no content: inputs are zeros that take no memory, class labels
repeat 0, 1, ..., and the sizes of natural clients are drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.base import Dataset
from hpcfl.data.partition import File, Iid, RowRanges
from hpcfl.data.sizes import even_sizes, lognormal_sizes
from hpcfl.data.split import keep_natural_clients
from hpcfl.errors import JobError
from hpcfl.job.schema import LoadedJob, section
from hpcfl.job_file.yaml_file import JobFile
from hpcfl.seeds import stream
from hpcfl.setup.load_data import fetch_data, load_data
from hpcfl.types import Count, Examples, IntArray, Natural, Section, Stored

OPTION = "--sizes"
EXAMPLE = "clients=20,train=6000,test=1000,classes=5,shape=3x32x32"
SPREAD = 1.0  # sigma of the logarithm of a natural client's examples
IMAGE = 3  # axes: channels, height and width, stored as bytes


@dataclass(frozen=True, kw_only=True)
class Sizes(Section):
    """The sizes of data that is not there."""

    train: Count
    """Training examples."""
    test: Natural = 0
    """Test examples."""
    clients: Count | None = None
    """Natural clients with training examples; None: the data names no clients."""
    classes: Count | None = None
    """Number of classes, or of words; None for a target."""
    shape: tuple[Count, ...] | None = None
    """Of an input of the model, such as 3x32x32."""
    words: Count | None = None
    """Length of a text, in place of ``shape``."""

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients > self.train:
            raise ValueError(
                f"clients is {self.clients}, but there are {self.train} training examples; "
                "expected one at least for each client"
            )
        if (self.shape is None) == (self.words is None):
            raise ValueError("expected shape of an input, such as 3x32x32, or words of a text")
        if self.words is not None and self.classes is None:
            raise ValueError("classes: missing; expected the number of different words")

    def __str__(self) -> str:
        clients = "" if self.clients is None else f"{self.clients} clients, "
        classes = "" if self.classes is None else f", {self.classes} classes"
        return f"{clients}{self.train} training and {self.test} test examples{classes}"


class PlannedData(NamedTuple):
    """The data that a plan is made with."""

    loaded: LoadedJob
    """The job, whose partition may have been replaced."""
    dataset: Dataset
    real: bool
    """Whether the data set was loaded; else it is a stand-in."""
    notes: Sequence[str]
    """What was assumed."""


def read_sizes(text: str) -> Sizes:
    """The sizes of a command line, such as ``EXAMPLE``.

    Raises:
        JobError: they are none.
    """
    tree: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        numbers = value.split("x" if key == "shape" else ",")
        if not all(number.isdecimal() and number.isascii() for number in numbers):
            raise JobError(f"{OPTION}: found {part!r}, expected key=number, such as {EXAMPLE}")
        tree[key] = [*map(int, numbers)] if key == "shape" else int(value)
    return make_sizes(tree, OPTION)


def make_sizes(tree: Any, where: str) -> Sizes:
    """The sizes of a mapping.

    Raises:
        JobError: it is none, or has other keys.
    """
    sizes: Sizes = section(Sizes, JobFile(where, {"sizes": tree}), "sizes")
    return sizes


def planned_data(loaded: LoadedJob, sizes: Sizes | None) -> PlannedData:
    """Load the job's data if it is there, and make a stand-in otherwise.

    Args:
        loaded: the job.
        sizes: make a stand-in of these, whatever is there.

    Raises:
        JobError, DataError: the data is there and cannot be used; or it is not, and no sizes are
            stated.
    """
    loaded, notes = _without_missing_split(loaded)
    data, kind = loaded.job.data, loaded.tree["data"]["kind"]
    if sizes is not None:
        dataset = keep_natural_clients(data, _stand_in(loaded, sizes), loaded.job.seed)
        drawn = f"; sizes of clients are drawn, lognormal with sigma {SPREAD:g}" * bool(
            sizes.clients
        )
        note = f"data {kind}, as {OPTION} says: {sizes}{drawn}"
        return PlannedData(loaded, dataset, False, (*notes, note))
    try:
        fetch_data(loaded)
        return PlannedData(loaded, load_data(loaded), True, notes)
    except JobError as error:
        why = str(error).partition(";")[0]
        raise JobError(
            f"data.kind: {kind}: cannot be loaded ({why}); put it there, or say its sizes, some of "
            f"which docs/data has: {OPTION} {EXAMPLE}"
        ) from error


def _without_missing_split(loaded: LoadedJob) -> tuple[LoadedJob, tuple[str, ...]]:
    """The job with an even split in the place of one whose file is not there."""
    data = loaded.job.data
    if not isinstance(data.partition, File) or Path(data.partition.path).exists():
        return loaded, ()
    if data.clients is None:
        raise JobError(
            f"data.partition.path: {data.partition.path} is not there, and the job does not say "
            "how many clients it has; put it there, or say data.clients=N"
        )
    job = replace(loaded.job, data=replace(data, partition=Iid()))
    note = (
        f"data.partition.path: {data.partition.path} is not there: planned with {data.clients} "
        "equal clients"
    )
    return replace(loaded, job=job), (note,)


@dataclass
class _DecodedZeros:
    """Inputs that a run decodes from a file: zeros of their shape."""

    shape: tuple[int, ...]
    workers: int
    dtype: torch.dtype = torch.uint8

    def read(self, rows: IntArray) -> Tensor:
        """Zeros [B, ...]."""
        return torch.zeros(len(rows), *self.shape[1:], dtype=self.dtype)


def _stand_in(loaded: LoadedJob, sizes: Sizes) -> Dataset:
    """A data set of these sizes, kept as the job's kind of data keeps its own."""
    natural = natural_tests = None
    if sizes.clients is not None:
        # The same for every seed: they stand for fixed ones.
        drawn = lognormal_sizes(sizes.train, sizes.clients, SPREAD, stream(0, "stand-in"))
        natural = RowRanges(np.cumsum(drawn) - drawn, drawn)
        if loaded.job.data.natural_clients is not None:
            even = even_sizes(sizes.test, sizes.clients)
            natural_tests = RowRanges(np.cumsum(even) - even, even)
    every_word = sizes.words is not None and getattr(loaded.job.model, "predict", "") == "every"
    decoded = getattr(loaded.job.data, "workers", None)
    return Dataset(
        train=_examples(sizes.train, sizes, decoded, every_word=every_word),
        test=_examples(sizes.test, sizes, decoded, every_word=every_word) if sizes.test else None,
        natural=natural,
        natural_tests=natural_tests,
        classes=sizes.classes,
        loss="tokens" if every_word else "squared" if sizes.classes is None else "cross_entropy",
        transform=_words if sizes.words is not None else _cast,
        mapped=loaded.job.data.maps_files and decoded is None,
    )


def _examples(count: int, sizes: Sizes, decoded: int | None, *, every_word: bool) -> Examples:
    """Zeros and their labels; ``decoded`` is the number of threads that decode from a file."""
    shape = sizes.shape or (sizes.words or 1,)
    inputs: Tensor | Stored
    if decoded is not None:
        inputs = _DecodedZeros((count, *shape), decoded)
    elif sizes.words is not None:
        inputs = _zeros(count, shape, torch.int16)
    else:
        inputs = _zeros(count, shape, torch.uint8 if len(shape) == IMAGE else torch.float32)
    if every_word:
        return Examples(inputs, _zeros(count, shape, torch.int16))
    if sizes.classes is None:
        return Examples(inputs, _zeros(count, (1,), torch.float32))
    return Examples(inputs, torch.arange(count) % sizes.classes)


def _zeros(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros [count, ...] that share one example's memory."""
    return torch.zeros(1, *shape, dtype=dtype).expand(count, *shape)


def _cast(inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
    return inputs.to(dtype)


def _words(inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
    return inputs.long()
