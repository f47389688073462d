"""The parts of local training: a client's task, and the gradient of its batches."""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcfl.algorithms.base import Client
from hpcfl.data.partition import Rows
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.models.dropout import dropouts
from hpcfl.models.flat_vector import Layout
from hpcfl.types import Batch, Count, Fraction, Loss, NonNegative, Positive, Section, Vector


@dataclass(frozen=True, kw_only=True)
class Local(Section):
    """The ``local`` section of a job: plain SGD, whatever the algorithm adds to it."""

    lr: Positive
    """eta, the local learning rate of round 0."""
    schedule: Literal["exponential", "cosine"] = "exponential"
    """How the learning rate falls: by lr_decay a round, or along half a cosine to 0 at the end."""
    lr_decay: Fraction = 1.0
    """Factor on the learning rate from each round to the next; 1 is a constant rate."""
    epochs: Count | None = None
    """Passes over the client's data; 1 when ``steps`` is absent too."""
    steps: Count | None = None
    """Local steps, going on through reshuffled passes; instead of ``epochs``."""
    batch_size: Count | Literal["full"] = 64
    """Examples a step, or all of the client's."""
    drop_last: bool = False
    """Leave out a pass's last partial batch, but keep at least one batch."""
    weight_decay: NonNegative = 0.0
    """Added last to the direction, at the point where the gradient is taken."""
    clip: Positive | None = None
    """Largest norm of a stochastic gradient."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both (null takes one away)")
        if self.schedule == "cosine" and self.lr_decay != 1:
            raise ValueError(
                f"schedule cosine knows no lr_decay, found {self.lr_decay}; leave lr_decay out, or "
                "say schedule: exponential"
            )

    def rate(self, round: int, rounds: int) -> float:
        """Eta of ``round``, counted from zero, out of ``rounds``."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round / rounds)) / 2
        return self.lr * self.lr_decay**round


class BatchIndices(NamedTuple):
    """What a local step takes of its client's examples."""

    positions: Rows  # [B], out of 0..n_i-1
    draws: NDArray[np.int64] | None  # [B], see ``Transform``; None where nothing is augmented


class ClientTask(NamedTuple):
    """One client's work in one round, as the executor gets it."""

    client_id: int
    round: int
    client: Client
    batches: Iterator[Batch]  # one a local step
    full_batches: Iterator[tuple[int, Batch]]  # (terms, batch): its whole data, no augmentation
    dropout_seed: int
    batch_indices: Iterator[
        BatchIndices
    ]  # what the batches hold, for who gathers those of many clients at once


class Gradient:
    """The gradient of a model's mean loss at any flat vector.

    The model's parameters are re-pointed to views of the vector, so none is copied; a vector that
    changes in place between calls (the executor's ``y``) stays pointed at.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, *, bf16: bool = False, clip: float | None = None
    ) -> None:
        self._model = model
        self._loss = loss
        self._layout = Layout.of(model)
        self._parameters: list[Tensor] = list(model.parameters())
        self._precision = (
            partial(autocast_bfloat16, self._parameters[0].device.type) if bf16 else nullcontext
        )
        self.clip = clip
        self._at: Vector | None = None
        self._drops = dropouts(model)
        self._others = _generator(self._parameters[0].device)

    def stochastic(self, point: Vector, batch: Batch, seed: int) -> tuple[Tensor, Vector]:
        """Mean loss and gradient on a batch: dropout masks from ``seed``, clipped if asked for."""
        self._begin(seed)
        value, grad = self._value_and_grad(point, batch)
        if self.clip is not None:
            grad = grad * (self.clip / grad.norm()).clamp(max=1.0)
        return value, grad

    def descend(self, y: Vector, batch: Batch, seed: int, rate: float, decay: float) -> Tensor:
        """A step of plain SGD from ``y``, in place; the mean loss before it.

        The bits of a step along ``stochastic``'s gradient, which is not copied into one vector.
        """
        self._begin(seed)
        value, grads = self._loss_and_grads(y, batch)
        with torch.no_grad():
            steps = torch._foreach_add(grads, self._parameters, alpha=decay) if decay else grads
            torch._foreach_add_(self._parameters, steps, alpha=-rate)
        return value

    def full(self, point: Vector, batches: Iterable[tuple[int, Batch]]) -> Vector:
        """The gradient of the mean loss over all batches: no dropout, not clipped.

        Args:
            point: where.
            batches: each with how many terms its mean loss has.
        """
        self._model.eval()
        total, count = torch.zeros_like(point), 0
        for terms, batch in batches:
            total.add_(self._value_and_grad(point, batch)[1], alpha=terms)
            count += terms
        self._model.train()
        return total.div_(count)

    def predict(self, x: Vector, inputs: Tensor) -> Tensor:
        """The model's outputs at ``x`` in the run's precision: no dropout, no gradient."""
        self._model.eval()
        with torch.no_grad():
            outputs = self._outputs(x, inputs)
        self._model.train()
        return outputs

    def _outputs(self, x: Vector, inputs: Tensor) -> Tensor:
        if x is not self._at:
            for parameter, view in zip(self._parameters, self._layout.views(x), strict=True):
                parameter.data = view
            self._at = x
        with self._precision():
            outputs: Tensor = self._model(inputs)
        return outputs

    def _value_and_grad(self, point: Vector, batch: Batch) -> tuple[Tensor, Vector]:
        value, grads = self._loss_and_grads(point, batch)
        return value, torch.cat([grad.reshape(-1) for grad in grads])

    def _loss_and_grads(self, point: Vector, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        value = self._loss(self._outputs(point, batch.inputs), batch.labels)
        return value.detach(), torch.autograd.grad(value, self._parameters)

    def _begin(self, seed: int) -> None:
        """Seed what layers draw: ``Dropout``, and whatever else takes torch's own numbers."""
        self._others.manual_seed(seed)
        if self._drops:
            common = torch.tensor(seed)
            for drop in self._drops:
                drop.begin(common)


def _generator(device: torch.device) -> torch.Generator:
    """What layers draw from on ``device``.

    Seeded by itself: ``torch.manual_seed`` seeds every device and takes as long as a small step.
    """
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator


class BatchGradient:
    """The gradient of one step's batch, wherever and as often as the algorithm asks for it."""

    __slots__ = ("_batch", "_gradient", "_seed", "loss")

    def __init__(self, gradient: Gradient, batch: Batch, seed: int) -> None:
        self._gradient, self._batch, self._seed = gradient, batch, seed
        self.loss: Tensor | None = None  # at the first point asked for

    def __call__(self, point: Vector) -> Vector:
        """The gradient of the batch's mean loss at ``point``."""
        value, grad = self._gradient.stochastic(point, self._batch, self._seed)
        if self.loss is None:
            self.loss = value
        return grad


class ClientResult(NamedTuple):
    """What a client's local training leaves."""

    upload: Any
    state: Any
    loss: Tensor  # 0-d, the mean over its local steps of the batch loss
    local_model: Vector  # [P], the last local model; [0] if not asked for
