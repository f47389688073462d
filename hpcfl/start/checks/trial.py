"""Try the job's classes on a few real batches: what the checks of data, model and algorithm share.

The trial changes neither a random stream nor the model's buffers.
"""

import traceback
from contextlib import AbstractContextManager
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpcfl import models
from hpcfl.engine.hook_rules import hook_advice
from hpcfl.errors import JobError, as_job_error, defined
from hpcfl.models.module import Module
from hpcfl.start.components.components import Components
from hpcfl.types import Batch
from hpcfl.user_code.generators import Generators, generators

CLIENTS = 2  # that are tried: the second shows what the first has left behind
# Folders of the code in which torch raises, if data and model do not fit together.
_FORWARD = tuple(Path(module.__path__[0]) for module in (torch, models))
_UNFIT = (RuntimeError, ValueError, IndexError)  # which torch raises there
_KEYED = "; such draws depend on the number of ranks and on restarts: "


class Trial:
    """The trial of one job's components.

    Args:
        components: of the job.
        resumed: whether the run began with other parameters than the components have.
    """

    def __init__(self, components: Components, *, resumed: bool = False) -> None:
        self.components, self.gradient = components, components.gradient()
        self.resumed = resumed
        self.clients = range(min(CLIENTS, len(components.population.rows)))
        """Those that are tried."""
        self.batches: dict[int, Batch] = {}
        """The first batch of each in round 1, once ``hpcfl.start.checks.data`` has made them."""
        self.largest: tuple[str, Batch] | None = None
        """The training example with the largest float in its inputs, and where it is; None where
        there is none in memory, or clients have transforms of their own."""

    def name(self, section: str, key: str) -> str:
        """A key of the job and its value, for messages."""
        return f"{section}.{key}: {self.components.loaded.tree[section][key]}"

    @property
    def kind(self) -> str:
        """The job's kind of data."""
        return self.components.loaded.names["data"]

    @property
    def in_transform(self) -> str:
        """Where the user's transform is, if it is the user's and all clients have it."""
        data = self.components.population.dataset
        return "" if data.personal else defined_transform(data.transform)

    @property
    def in_model(self) -> str:
        """Where the user's model is made, if it is the user's."""
        model = self.components.model.module
        return defined(type(model).forward) or defined(type(self.components.job.model).build)

    def batch_of(self, inputs: Tensor, labels: Tensor) -> Batch:
        """A batch of stored examples, without augmentation.

        Raises:
            JobError: the user's transform cannot make it.
        """
        device, dtype = self.components.device, self.components.model.x0.dtype
        with self.data_errors():
            made = self.components.population.dataset.transform(inputs.to(device), dtype, None)
        return Batch(made, labels.to(device))

    def inputs_of(self, batch: Batch) -> dict[str, Tensor]:
        """The inputs of a batch by name, or one called "inputs"."""
        named = self.components.population.dataset.named
        if named is None:
            return {"inputs": batch.inputs}
        return named.given(self.components.model.x0.dtype).unpack(batch.inputs)

    def algorithm_errors(self) -> AbstractContextManager[None]:
        """Name the algorithm in an error of the block."""
        name, does = self.name("algorithm", "name"), "its trial before round 1 failed"
        algorithm = self.components.job.algorithm
        return as_job_error(
            name, does, defined(type(algorithm).update), algorithm, advice=hook_advice
        )

    def data_errors(self) -> AbstractContextManager[None]:
        """Name the data in an error of the block."""
        name, does = self.name("data", "kind"), "a batch of it cannot be made"
        return as_job_error(name, does, self.in_transform, self.components.job.data)

    def model_errors(self, batch: Batch) -> AbstractContextManager[None]:
        """Name the model, the data and what the batch is in an error of the block."""
        tensors = (*self.inputs_of(batch).items(), ("labels", batch.labels))
        given = ", ".join(f"{name} {shape_text(tensor)}" for name, tensor in tensors)
        does = f"cannot be trained on a batch of data.kind {self.kind} ({given})"
        job, name = self.components.job, self.name("model", "name")
        # A module of the user's is called by hpcfl's own class of models.
        own = (self.components.model.module,) if isinstance(job.model, Module) else ()
        called = (job.model, job.data, *own)
        # Data of the user may not fit the model, even if every class is hpcfl's.
        return as_job_error(name, does, self.in_model, *called, blames=_refused_by_torch)

    def check_undrawn(
        self,
        before: Generators,
        section: str,
        key: str,
        what: str,
        advice: str,
        after: Generators | None = None,
    ) -> None:
        """Refuse draws from the generators of the process.

        Args:
            before: their states before the class was called.
            section: of the job, with the class.
            key: that names the class.
            what: of the class drew.
            advice: what to do.
            after: their states after the call; None: those of now.
        """
        drew = (after or generators()).changed(before)
        if drew:
            where = self.in_model if section == "model" else self.in_transform
            raise JobError(
                f"{self.name(section, key)}: {what}{where} draws from {' and '.join(drew)}"
                f"{_KEYED}{advice}"
            )


def defined_transform(transform: Any) -> str:
    """Where a transform of the user's is defined, for a message; else empty."""
    while isinstance(transform, partial):
        transform = transform.func
    return defined(transform if isfunction(transform) else type(transform).__call__)


def _refused_by_torch(error: Exception) -> bool:
    """Whether torch itself raised, in a forward pass, a loss or its gradient."""
    if not isinstance(error, _UNFIT):
        return False
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    file = Path(innermost.f_code.co_filename)
    return any(file.is_relative_to(folder) for folder in _FORWARD)


def shape_text(tensor: Tensor) -> str:
    """The dtype and the shape of a tensor: "float32[8, 3]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
