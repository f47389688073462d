"""The data of a job that is planned before they are there: drawn, of sizes that the user states.

All inputs are one example, drawn at random; class labels repeat 0, 1, ...; the sizes of natural
clients are drawn.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.base import DataConfig, Dataset, Transform
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.partition import File, Iid, RowRanges
from hpcfl.data.sizes import even_sizes, lognormal_sizes
from hpcfl.data.sources.arrays import cast, to_indices
from hpcfl.errors import JobError
from hpcfl.job.load import section
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.job_file.yaml_file import JobFile
from hpcfl.seeds import key, stream
from hpcfl.types import PAD, Count, Examples, IntArray, LossName, Natural, Section, Stored

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
    labels: Count | None = None
    """Labels of an example, such as the tokens of a text; None: one."""

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


def planned_job(
    loaded: LoadedJob, sizes: Sizes | None, *, in_memory: bool = False
) -> tuple[LoadedJob, tuple[str, ...]]:
    """The job with drawn data where sizes are given, and lines on what was assumed.

    A partition's file that is not there is replaced by equal clients.

    Args:
        loaded: the job.
        sizes: of the data; None: the job's own are there.
        in_memory: whether drawn examples take the memory that those of the job do.

    Raises:
        JobError: the file of the partition is not there, and the job does not say how many clients
            there are.
    """
    loaded, notes = _without_missing_split(loaded)
    if sizes is None:
        return loaded, notes
    data = loaded.job.data
    predict = getattr(data, "predict", getattr(loaded.job.model, "predict", ""))
    if sizes.words is not None and predict == "every":
        sizes = replace(sizes, labels=sizes.words)
    classes: LossName = "cross_entropy" if sizes.labels is None else "tokens"
    division = {field.name: getattr(data, field.name) for field in fields(DataConfig)}
    drawn = (_MappedData if data.maps_files else DrawnData)(
        **division,
        sizes=sizes,
        augment=getattr(data, "augment", False),
        workers=getattr(data, "workers", None),
        loss="squared" if sizes.classes is None else classes,
        padded=data.padded_text,
        in_memory=in_memory,
    )
    spread = f"; sizes of clients are drawn, lognormal with sigma {SPREAD:g}" * bool(sizes.clients)
    note = f"data {loaded.names['data']}, as {OPTION} says: {sizes}{spread}"
    return replace(loaded, job=replace(loaded.job, data=drawn)), (*notes, note)


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
    note = (
        f"data.partition.path: {data.partition.path} is not there: planned with {data.clients} "
        "equal clients"
    )
    job = replace(loaded.job, data=replace(data, partition=Iid()))
    return replace(loaded, job=job), (note,)


@dataclass(frozen=True, kw_only=True)
class DrawnData(DataConfig):
    """Data of the stated sizes, kept as the job's kind of data keeps its own."""

    sizes: Sizes
    augment: bool
    """Of images."""
    workers: int | None
    """Threads that decode examples from a file; None: the job's are no such examples."""
    loss: LossName
    padded: bool | None
    """See ``padded_text``."""
    in_memory: bool
    """Whether each example has memory of its own, unless the job's are in a file."""

    @property
    def padded_text(self) -> bool | None:
        """Whether its texts end with padding, as those of the job do."""
        return self.padded

    def load(self, seed: int) -> Dataset:
        """Draw the data: the same for every seed, as they stand for fixed ones."""
        sizes, natural, natural_tests = self.sizes, None, None
        if sizes.clients is not None:
            drawn = lognormal_sizes(sizes.train, sizes.clients, SPREAD, stream(0, "stand-in"))
            natural = RowRanges(np.cumsum(drawn) - drawn, drawn)
            if self.natural_clients is not None:
                even = even_sizes(sizes.test, sizes.clients)
                natural_tests = RowRanges(np.cumsum(even) - even, even)
        return Dataset(
            train=self._examples(sizes.train),
            test=self._examples(sizes.test) if sizes.test else None,
            natural=natural,
            natural_tests=natural_tests,
            classes=sizes.classes,
            loss=self.loss,
            padding=PAD if self.loss == "tokens" and self.padded else None,
            transform=self._transform(),
            mapped=self.maps_files and self.workers is None,
            origin=f"{OPTION} {sizes}",
        )

    def _stored_shape(self) -> tuple[int, ...]:
        """Of an example: images have their channels last."""
        shape = self.sizes.shape or (self.sizes.words or 1,)
        return (*shape[1:], shape[0]) if len(shape) == IMAGE else shape

    def _transform(self) -> Transform:
        if self.sizes.words is not None:
            return to_indices
        shape = self._stored_shape()
        if len(shape) != IMAGE:
            return cast
        channels = shape[-1]
        return CropFlipNormalize((0.5,) * channels, (0.3,) * channels, augment=self.augment)

    def _examples(self, count: int) -> Examples:
        sizes = self.sizes
        shape = self._stored_shape()
        generator = torch.Generator().manual_seed(key(0, "stand-in"))
        if sizes.words is not None:
            words = min(sizes.classes or 1, torch.iinfo(torch.int16).max)
            least = min(1, words - 1)  # 0 is padding
            one = torch.randint(least, words, (1, *shape), generator=generator).to(torch.int16)
        elif len(shape) == IMAGE:
            one = torch.randint(256, (1, *shape), generator=generator).to(torch.uint8)
        else:
            one = torch.rand(1, *shape, generator=generator)
        inputs: Tensor | Stored
        if self.workers is not None:
            inputs = _Repeated(one, count, self.workers)
        else:
            inputs = one.expand(count, *shape)
            if self.in_memory and not self.maps_files:
                inputs = inputs.contiguous()
        several = sizes.labels or 1
        if sizes.classes is None:
            return Examples(inputs, torch.zeros(1, several).expand(count, several))
        if self.loss == "tokens":
            labels = torch.arange(1, several + 1) % sizes.classes  # mostly not 0, the padding
            return Examples(inputs, labels.expand(count, several))
        return Examples(inputs, torch.arange(count) % sizes.classes)


class _MappedData(DrawnData):
    """In the place of data in prepared files."""

    maps_files: ClassVar[bool] = True


class _Repeated:
    """One example, in the place of those that a run decodes from a file."""

    def __init__(self, one: Tensor, count: int, workers: int) -> None:
        self._one, self.workers = one, workers
        self.shape, self.dtype = (count, *one.shape[1:]), one.dtype

    def read(self, rows: IntArray) -> Tensor:
        """It, as often as there are rows: [B, ...]."""
        return self._one.repeat(len(rows), *[1] * (self._one.ndim - 1))
