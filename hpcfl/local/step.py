"""The ``local`` section of a job with its learning-rate schedule; a client's task, step and result.

``Gradient`` is the gradient of a client's batches, and ``local_step`` the step that executors,
the dry round and the checks before round 1 all take.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from hpcfl.algorithms.facts import Client, Forward, Grad, LossTerms
from hpcfl.data.partition import ExampleRows
from hpcfl.errors import BrokenRuleError
from hpcfl.layout import Layout
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.local.layers import aligned
from hpcfl.models.dropout import dropouts
from hpcfl.models.features import inputs_of
from hpcfl.models.flat_vector import last_dense, layout_of, trained
from hpcfl.models.losses import TermLoss, label_mask, widen
from hpcfl.models.statistics import RunningStatistics
from hpcfl.optim import Descent, OptimizerConfig, Sgd
from hpcfl.types import (
    Batch,
    Count,
    Decay,
    Fraction,
    IntArray,
    NonNegative,
    Positive,
    Section,
    Vector,
)


@dataclass(frozen=True, kw_only=True)
class Local(Section):
    """The ``local`` section of a job: the clients' steps, to which an algorithm adds its terms."""

    lr: Positive
    """eta, the local learning rate of round 0."""
    schedule: Literal["exponential", "cosine"] = "exponential"
    """The learning rate of round t = 0, 1, ... of T: lr lr_decay^t, or with cosine
    lr (1 + cos(pi t / T)) / 2."""
    lr_decay: Fraction = 1.0
    """Factor on the learning rate from each round to the next; 1 is a constant rate."""
    epochs: Count | None = None
    """Passes over the client's data; 1 when ``steps`` is absent too."""
    steps: Count | None = None
    """Local steps; every pass over the data is shuffled anew. Instead of ``epochs``."""
    batch_size: Count | Literal["full"] = 64
    """Examples in a step's batch; full: all examples of the client."""
    drop_last: bool = False
    """Skip the last batch of a pass if it is smaller than the others and not the only one."""
    optimizer: OptimizerConfig = "sgd"
    """Of the steps, from a fresh state in every round: sgd, adam, adamw, muon, or a dotted path; or
    a section of its ``kind`` and keys."""
    weight_decay: NonNegative = 0.0
    """lambda: lambda times the point of the gradient is added to each step's direction, or, with
    adamw and muon, to what the optimiser makes of it."""
    momentum: Decay = 0.0
    """mu of the clients' SGD: v <- mu v + direction with its weight decay; steps follow v, which is
    0 at the start of every round."""
    nesterov: bool = False
    """Steps follow the direction + mu v instead of v, as in torch.optim.SGD."""
    clip: Positive | None = None
    """The largest norm of a stochastic gradient; longer ones are scaled down to it."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both (null removes one)")
        if self.schedule == "cosine" and self.lr_decay != 1:
            raise ValueError(
                f"schedule cosine has no lr_decay, found {self.lr_decay}; remove lr_decay, or set "
                "schedule: exponential"
            )
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"momentum: found {self.momentum:g}, which is of optimizer sgd alone; set "
                "momentum: 0, or optimizer: sgd"
            )
        if self.nesterov and not self.momentum:
            raise ValueError(
                f"nesterov: found true with momentum {self.momentum:g}, which it would not change; "
                "set momentum (0.9 is usual), or nesterov: false"
            )

    def descent(self, layout: Layout) -> Descent:
        """The optimiser of the local steps of a model."""
        sgd = Sgd(momentum=self.momentum, nesterov=self.nesterov)
        optimizer = sgd if isinstance(self.optimizer, str) else self.optimizer
        return Descent(optimizer, self.weight_decay, layout)

    def lr_of_round(self, round: int, rounds: int) -> float:
        """The learning rate eta of ``round``, counted from zero, out of ``rounds``."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round / rounds)) / 2
        return self.lr * self.lr_decay**round


class BatchIndices(NamedTuple):
    """The examples of one local step, among those of its client."""

    positions: ExampleRows  # [B], from 0 to n_i - 1
    draws: IntArray | None  # [B], see ``Transform``; None where nothing is augmented


class StepHooks(Protocol):
    """The hooks of a local step: an ``Algorithm``, or one whose rules are checked."""

    def points(self, y: Vector, local: Any, client: Client) -> tuple[Vector, Vector]:
        """See ``Algorithm``, as of all hooks here."""
        ...

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        """Along which the client goes downhill, and its new local quantities."""
        ...

    def step_scale(self, y: Vector, local: Any, client: Client) -> float | Tensor:
        """The factor on the learning rate."""
        ...


class LocalStep(NamedTuple):
    """One local step but its last line, y = start - scale lr along, which callers compute."""

    start: Vector
    along: Vector
    scale: float | Tensor  # a number, or a vector [P]
    local: Any  # what the client keeps between the steps of a round
    state: Any  # of the optimiser


def local_step(
    hooks: StepHooks,
    descent: Descent,
    y: Vector,
    local: Any,
    state: Any,
    grad: Grad,
    client: Client,
) -> LocalStep:
    """Take a local step but its last line; pure, so that ``torch.func.vmap`` can compute it too.

    Args:
        hooks: of the algorithm.
        descent: the job's optimiser.
        y: [P], the client's model.
        local: what it keeps between the steps of a round.
        state: of the optimiser, after the step before.
        grad: the gradient of the step's batch at a point.
        client: the client.
    """
    start, point = hooks.points(y, local, client)
    d, local = hooks.direction(point, local, grad, client)
    along, state = descent.step(d, point, state)
    return LocalStep(start, along, hooks.step_scale(y, local, client), local, state)


@lru_cache(1 << 16)
def number(value: float) -> Tensor:
    """A 0-d tensor; hooks change nothing in place, so that one serves all clients.

    Never of integers: a Python float to the power of such a tensor is float32.
    """
    return torch.tensor(value, dtype=torch.float64)


ClientTensors = Mapping[str, Any]


def tensors_of(client: Client) -> ClientTensors:
    """What a client has, by field: ``vmap`` and graphs take tensors, and no None."""
    return {field: value for field, value in client._asdict().items() if value is not None}


class ClientTask(NamedTuple):
    """One client's local training in one round: the input of an executor."""

    client_id: int
    round: int
    seed: int  # of the job
    client: Client
    batches: Iterator[Batch]
    """The batch of each local step."""
    full_batches: Iterator[tuple[int, Batch]]
    """All examples without augmentation, each batch with the number of terms of its mean loss."""
    dropout_seed: int
    """Of the first local step; the seed of each further step is larger by 1."""
    batch_indices: Iterator[BatchIndices]
    """The indices of the same batches, for a block that gathers those of many clients at once."""


@contextmanager
def _recurrent_layers_in_training(model: nn.Module, device: torch.device) -> Iterator[None]:
    """On a GPU, put recurrent layers into training mode without dropout.

    cuDNN has no backward pass of a recurrent layer in evaluation; without dropout both modes
    compute the same.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.RNNBase)]
    if device.type != "cuda":
        layers = []
    shares = [layer.dropout for layer in layers]
    for layer in layers:
        layer.train()
        layer.dropout = 0.0
    try:
        yield
    finally:
        for layer, share in zip(layers, shares, strict=True):
            layer.dropout = share


class LayerSeeds:
    """Seeds the layers of a model: hpcfl's ``Dropout``, and those that draw from torch's generator.

    The numbers that they draw in a local step then follow from the step's seed alone.
    """

    def __init__(self, model: nn.Module) -> None:
        self._dropouts = dropouts(model)
        self._generators = default_generators(next(iter(trained(model).values())).device)

    def __call__(self, seed: int) -> None:
        """Begin a local step of this seed."""
        for generator in self._generators:
            generator.manual_seed(seed)
        if self._dropouts:
            common = torch.tensor(seed)
            for dropout in self._dropouts:
                dropout.begin(common)


def default_generators(device: torch.device) -> list[torch.Generator]:
    """The generators from which layers on ``device`` draw; beside a GPU's that of the CPU, too.

    They are seeded alone, as ``torch.manual_seed`` seeds every device, which takes as long as a
    small step.
    """
    if device.type == "cuda":
        return [torch.default_generator, torch.cuda.default_generators[device.index]]
    return [torch.default_generator]


@contextmanager
def unchanged(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Around a forward pass: check that it leaves the parameters as they are.

    Raises:
        BrokenRuleError: it does not.
    """
    before = [parameter._version for parameter in parameters]
    yield
    if before != [parameter._version for parameter in parameters]:
        raise BrokenRuleError(
            "its forward pass changes its parameters in place, as an embedding with max_norm "
            "does; let the local steps alone change them"
        )


class Gradient:
    """The gradient of a model's mean loss at any flat vector.

    The model's parameters become views of the vector, so that nothing is copied; where the same
    vector comes again, changed in place (the executor's ``y``), they are its views already.

    Where the model has running statistics [Q], it is evaluated at a point [P + Q], which has them
    behind the parameters, or at one of [P] by those that it was made with.

    Args:
        model: whose parameters and statistics become views.
        loss: of a batch.
        bf16: whether to autocast to bfloat16.
        clip: the largest norm of a stochastic gradient.
        statistics: the model's, if batches move any.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: TermLoss,
        *,
        bf16: bool = False,
        clip: float | None = None,
        statistics: RunningStatistics | None = None,
    ) -> None:
        self.model, self.loss, self.bf16, self.clip = model, loss, bf16, clip
        self.statistics = statistics
        self._uncounted = nullcontext if statistics is None else statistics.uncounted
        self._always_in_evaluation = [layer for layer in model.modules() if not layer.training]
        self._layout, self._last_dense = layout_of(model), last_dense(model)
        self._parameters: list[Tensor] = list(trained(model).values())
        self._precision = (
            partial(autocast_bfloat16, self._parameters[0].device.type) if bf16 else nullcontext
        )
        self._viewed: Vector | None = None  # the vector of which the parameters are views
        self._seed_layers = LayerSeeds(model)

    def stochastic(self, point: Vector, batch: Batch, seed: int) -> tuple[Tensor, Vector]:
        """Mean loss and gradient on a batch, clipped; dropout masks follow from ``seed``."""
        self._seed_layers(seed)
        value, grad = self._value_and_grad(point, batch)
        if self.clip is not None:
            grad = clipped(grad, self.clip)
        return value, grad

    def of_terms(
        self, point: Vector, batch: Batch, seed: int, terms: LossTerms
    ) -> tuple[Tensor, Vector]:
        """Mean loss of the job, and the clipped gradient of the mean of other terms.

        Raises:
            BrokenRuleError: the terms have another shape than those of the job's loss.
        """
        forward = self._forward(point, batch, seed)
        made = terms(forward)
        check_terms(made, forward.losses)
        value = self.loss.mean(made, batch.labels)
        grads = torch.autograd.grad(value, self._parameters)
        grad = torch.cat([grad.reshape(-1) for grad in grads])
        own = self.loss.mean(forward.losses.detach(), batch.labels)
        return own, grad if self.clip is None else clipped(grad, self.clip)

    def forward(self, point: Vector, batch: Batch, seed: int) -> Forward:
        """What the model makes of a batch in training, without gradient."""
        with torch.no_grad():
            return self._forward(point, batch, seed)

    def _forward(self, point: Vector, batch: Batch, seed: int) -> Forward:
        self._seed_layers(seed)
        with inputs_of(self._last_dense) as features:
            outputs = self._outputs(point, batch.inputs)
        return as_forward(self.loss, outputs, batch.labels, features)

    def descend(self, y: Vector, batch: Batch, seed: int, lr: float, weight_decay: float) -> Tensor:
        """Take a step of plain SGD from ``y``, in place; return the mean loss before it.

        The same bits as a step along ``stochastic``'s gradient, but without the copy that joins the
        gradients of all parameters in one vector.
        """
        self._seed_layers(seed)
        value, grads = self._loss_and_grads(y, batch)
        with torch.no_grad():
            steps = grads
            if weight_decay:
                steps = torch._foreach_add(grads, self._parameters, alpha=weight_decay)
            torch._foreach_add_(self._parameters, steps, alpha=-lr)
        return value

    def full(
        self, points: Sequence[Vector], batches: Iterable[tuple[int, Batch]]
    ) -> tuple[Vector, ...]:
        """The gradients [P] of the mean loss over all batches: no dropout, no clipping.

        Zero where all labels are padding.

        Args:
            points: [P] or [P + Q] each; one pass over the batches serves them all.
            batches: each with the number of terms of its mean loss, by which it is weighted.
        """
        self.model.eval()
        totals, count = tuple(p.new_zeros(self._layout.total) for p in points), 0
        with _recurrent_layers_in_training(self.model, self._parameters[0].device):
            for terms, batch in batches:
                for point, total in zip(points, totals, strict=True):
                    self._load_statistics(point)
                    total.add_(self._value_and_grad(point, batch)[1], alpha=terms)
                count += terms
        self._train()
        return tuple(total.div_(max(count, 1)) for total in totals)

    def predict(self, x: Vector, inputs: Tensor) -> Tensor:
        """The model's outputs at ``x`` in the run's precision: no dropout, no gradient.

        Args:
            x: [P] or [P + Q].
            inputs: of a batch.
        """
        self.model.eval()
        self._load_statistics(x)
        with torch.no_grad():
            outputs = self._outputs(x, inputs)
        self._train()
        return outputs

    def unused(self, x: Vector, batch: Batch) -> list[int]:
        """The numbers of the parameters that a batch's loss does not depend on."""
        value = self.loss(self._outputs(x, batch.inputs), batch.labels)
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            value, self._parameters, allow_unused=True
        )
        return [number for number, grad in enumerate(grads) if grad is None]

    def _train(self) -> None:
        """End an evaluation; layers that were in evaluation mode at the beginning stay in it."""
        self.model.train()
        for layer in self._always_in_evaluation:
            layer.train(mode=False)

    def _load_statistics(self, point: Vector) -> None:
        if self.statistics is not None:
            own = point[self._layout.total :]
            self.statistics.load(own if len(own) else self.statistics.initial)

    def _outputs(self, x: Vector, inputs: Tensor) -> Tensor:
        if x is not self._viewed:
            views = self._layout.views(x[: self._layout.total])
            for parameter, view in zip(self._parameters, views, strict=True):
                parameter.data = view
            self._viewed = x
        with unchanged(self._parameters), self._precision(), self._uncounted():
            outputs: Tensor = self.model(inputs)
        return outputs

    def _value_and_grad(self, point: Vector, batch: Batch) -> tuple[Tensor, Vector]:
        value, grads = self._loss_and_grads(point, batch)
        return value, torch.cat([grad.reshape(-1) for grad in grads])

    def _loss_and_grads(self, point: Vector, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        value = self.loss(self._outputs(point, batch.inputs), batch.labels)
        return value.detach(), torch.autograd.grad(value, self._parameters)


def clipped(gradients: Tensor, clip: float) -> Tensor:
    """Gradients [..., P], each scaled down to the norm ``clip`` if it is longer."""
    # On a GPU the order of a sum depends on where a row begins.
    even = gradients if gradients.device.type == "cpu" else aligned(gradients)
    norms: Tensor = even.norm(dim=-1, keepdim=True)
    if norms.device.type == "cpu" and not norms.isinf().any():
        factors: Tensor = clip / norms
        return gradients * factors.clamp(max=1.0)
    # The squares of finite numbers may be beyond float32, and a client would stand still.
    wide = torch.linalg.vector_norm(even, dim=-1, keepdim=True, dtype=torch.float64)
    factors = torch.where(norms.isinf(), (clip / wide).to(norms.dtype), clip / norms)
    return gradients * factors.clamp(max=1.0)


def as_forward(
    loss: TermLoss,
    outputs: Tensor,
    labels: Tensor,
    features: Sequence[Tensor],
    counts: Tensor | None = None,
) -> Forward:
    """What hooks see of a batch: everything in float32 or wider.

    Args:
        loss: of the job.
        outputs: of the model.
        labels: of the batch.
        features: what the last dense layer was called with; none without such a layer.
        counts: [B], 1 for an example and 0 for padding; None where nothing is padded.
    """
    wide = widen(outputs)
    present = wide.new_ones(len(labels)) if counts is None else counts.to(wide.dtype)
    return Forward(
        wide,
        labels,
        label_mask(wide, labels, loss.name),
        loss.terms(wide, labels),
        widen(features[-1]) if features else wide.new_zeros(0),
        present,
    )


def check_terms(found: object, losses: Tensor) -> None:
    """Refuse terms of another shape than those of the job's loss.

    Raises:
        BrokenRuleError: they have.
    """
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != tuple(losses.shape):
        raise BrokenRuleError(
            f"the terms of its loss have the shape {shape}, expected {tuple(losses.shape)}, that "
            "of forward.losses: one for each example or label"
        )


class OneAtATime:
    """Refuses calls of ``grad`` inside the function that makes the terms of a loss.

    The parameters would be others when the gradient is computed.
    """

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        self._inside = False

    def check(self) -> None:
        """Raise BrokenRuleError inside such a function."""
        if self._inside:
            raise BrokenRuleError(
                "grad is called inside the function of a loss; call grad and grad.forward before"
            )

    def guarded(self, terms: LossTerms) -> LossTerms:
        """The same function, inside which ``check`` raises."""

        def inside(forward: Forward) -> Tensor:
            self._inside = True
            try:
                return terms(forward)
            finally:
                self._inside = False

        return inside


class BatchGradient:
    """The gradient of one step's batch: see ``Grad``, which a hook may call several times."""

    __slots__ = ("_batch", "_calls", "_gradient", "_seed", "loss", "statistics")

    def __init__(self, gradient: Gradient, batch: Batch, seed: int) -> None:
        self._gradient, self._batch, self._seed = gradient, batch, seed
        self._calls = OneAtATime()
        self.loss: Tensor | None = None  # of the job, at the point of the first call
        self.statistics: Vector | None = None  # [Q], which the first call moves; or None

    def __call__(self, point: Vector, loss: LossTerms | None = None) -> Vector:
        """The gradient at ``point``."""
        self._calls.check()
        moved = self._gradient.statistics if self.loss is None else None
        if moved is not None and self.statistics is not None:
            moved.load(self.statistics)
        if loss is None:
            value, grad = self._gradient.stochastic(point, self._batch, self._seed)
        else:
            terms = self._calls.guarded(loss)
            value, grad = self._gradient.of_terms(point, self._batch, self._seed, terms)
        if moved is not None:
            self.statistics = moved.taken()
        if self.loss is None:
            self.loss = value
        return grad

    def forward(self, point: Vector) -> Forward:
        """What the model makes of the batch at ``point``, without gradient."""
        self._calls.check()
        return self._gradient.forward(point, self._batch, self._seed)


class ClientResult(NamedTuple):
    """The result of one client's local training in one round."""

    upload: Any
    state: Any
    loss: Tensor  # 0-d, the mean over its local steps of the batch loss
    local_model: Vector  # [P], the last local model; [0] unless ``local_models`` is True
