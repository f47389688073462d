"""Stand-ins: data sets of known sizes whose files are not there, to plan a job with.

A stand-in has the shapes, clients and classes of the data set and no content: inputs are zeros that
take no memory, class labels repeat 0, 1, ..., and the sizes of natural clients are drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.base import Dataset, Transform
from hpcfl.data.partition import RowRanges
from hpcfl.data.published import PublishedSizes
from hpcfl.data.sizes import lognormal_sizes
from hpcfl.errors import JobError
from hpcfl.seeds import stream
from hpcfl.types import Examples, IntArray, LossName, Stored


@dataclass
class BlankFile:
    """Inputs that a run decodes from a file: zeros of their shape."""

    shape: tuple[int, ...]
    workers: int
    dtype: torch.dtype = torch.uint8

    def read(self, rows: IntArray) -> Tensor:
        """Zeros [B, ...]."""
        return torch.zeros(len(rows), *self.shape[1:], dtype=self.dtype)


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a data set's examples, whatever their number."""

    shape: tuple[int, ...]
    """Of an input as it is stored."""
    dtype: torch.dtype = torch.uint8
    """Of inputs as they are stored."""
    transform: Transform
    loss: LossName = "cross_entropy"
    labels: tuple[int, ...] = ()
    """The shape of a label of the loss ``tokens`` and of targets; classes are single numbers."""
    workers: int | None = None
    """Threads that decode inputs from a file; None: inputs are in memory, or mapped."""
    mapped: bool = False
    tests_of_clients: bool = False
    """Whether the data set says whose its test examples are."""
    least: int = 1
    """Natural clients with fewer training examples are left out."""
    most: int | None = None
    """Training examples of a natural client that are kept, the first ones."""


def stand_in(
    sizes: PublishedSizes,
    form: Form,
    personal: Callable[[int], Transform] | None = None,
) -> Dataset:
    """A data set of these sizes and of this form, without content.

    Raises:
        JobError: no client has ``form.least`` examples, as they are drawn.
    """
    natural, tests = None, None
    if sizes.clients is not None:
        natural = _clients(sizes.train, sizes.clients, sizes.spread)
        enough = natural.sizes >= form.least
        if not enough.any():
            raise JobError(
                f"data.min_examples: none of the {sizes.clients} clients has {form.least} examples "
                f"as their sizes are drawn; the largest has {natural.sizes.max()}"
            )
        starts = np.cumsum(natural.sizes) - natural.sizes
        kept = natural.sizes if form.most is None else np.minimum(natural.sizes, form.most)
        if form.tests_of_clients and sizes.test:
            # In the proportions of the training examples.
            ends = np.rint(np.cumsum(natural.sizes) / sizes.train * sizes.test).astype(np.int64)
            begins = np.concatenate([[0], ends[:-1]])
            tests = RowRanges(begins[enough], (ends - begins)[enough])
        natural = RowRanges(starts[enough], kept[enough])
    return Dataset(
        train=_examples(sizes.train, sizes.classes, form),
        test=_examples(sizes.test, sizes.classes, form) if sizes.test else None,
        natural=natural,
        natural_tests=tests,
        classes=sizes.classes,
        loss=form.loss,
        transform=form.transform,
        personal=personal,
        mapped=form.mapped,
    )


def _clients(total: int, clients: int, spread: float) -> RowRanges:
    """Clients of lognormal sizes, the same for every seed: they stand for fixed ones."""
    drawn = lognormal_sizes(total, clients, spread, stream(0, "stand-in"))
    return RowRanges(np.cumsum(drawn) - drawn, drawn)


def _examples(count: int, classes: int | None, form: Form) -> Examples:
    inputs: Tensor | Stored
    if form.workers is None:
        inputs = _zeros(count, form.shape, form.dtype)
    else:
        inputs = BlankFile((count, *form.shape), form.workers)
    if form.loss == "cross_entropy" and classes is not None:
        return Examples(inputs, torch.arange(count) % classes)
    return Examples(inputs, _zeros(count, form.labels, form.dtype))


def _zeros(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros [count, ...] that share one example's memory."""
    return torch.zeros(1, *shape, dtype=dtype).expand(count, *shape)


def of_arrays(kind: str, sizes: PublishedSizes, transform: Transform) -> Dataset:
    """A stand-in of the user's own examples: float32 of the shape that is stated.

    Raises:
        JobError: no shape is stated.
    """
    if sizes.shape is None:
        raise JobError(
            f"--sizes: shape: missing; {kind} takes it from the data: say [3, 32, 32] of images"
        )
    regression = sizes.classes is None
    form = Form(
        shape=sizes.shape,
        dtype=torch.float32,
        transform=transform,
        loss="squared" if regression else "cross_entropy",
        labels=(1,) if regression else (),
        tests_of_clients=True,
    )
    return stand_in(sizes, form)
