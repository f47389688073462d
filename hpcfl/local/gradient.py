"""The gradient of a model's mean loss at any flat vector, by plain autograd."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from hpcfl.algorithms.facts import Forward, LossTerms
from hpcfl.errors import BrokenRuleError
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.local.dense_chain import DenseChain
from hpcfl.local.grad import BatchFunction
from hpcfl.local.layers import aligned
from hpcfl.models.dropout import dropouts
from hpcfl.models.features import inputs_of
from hpcfl.models.flat_vector import last_dense, layout_of, trained
from hpcfl.models.losses import TermLoss, label_mask, widen
from hpcfl.models.outputs import outputs_of
from hpcfl.models.statistics import RunningStatistics
from hpcfl.types import Batch, Vector


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
        parts: in which the batch of a local step is computed, one after the other.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: TermLoss,
        *,
        bf16: bool = False,
        clip: float | None = None,
        statistics: RunningStatistics | None = None,
        parts: int = 1,
    ) -> None:
        self.model, self.loss, self.bf16, self.clip = model, loss, bf16, clip
        self.statistics, self._parts = statistics, parts
        self._uncounted = nullcontext if statistics is None else statistics.uncounted
        self._always_in_evaluation = [layer for layer in model.modules() if not layer.training]
        self._layout, self._last_dense = layout_of(model), last_dense(model)
        self._parameters: list[Tensor] = list(trained(model).values())
        self._precision = (
            partial(autocast_bfloat16, self._parameters[0].device.type) if bf16 else nullcontext
        )
        self.chain = None if bf16 else DenseChain.of(model, loss, self._parameters)
        """Computes the gradients of small dense models; None for all others."""
        self._viewed: Vector | None = None  # the vector of which the parameters are views
        self._seed_layers = LayerSeeds(model)

    def on(self, batch: Batch, seed: int) -> BatchFunction:
        """The loss of the batch of one local step; dropout masks follow from ``seed``."""
        return _OneBatch(self, batch, seed)

    def stochastic(self, point: Vector, batch: Batch, seed: int) -> tuple[Tensor, Vector]:
        """Mean loss and gradient on a batch, clipped; dropout masks follow from ``seed``."""
        self._seed_layers(seed)
        value, grads = self._in_parts(point, batch)
        grad = torch.cat([grad.reshape(-1) for grad in grads])
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
        value, grads = self._in_parts(y, batch)
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

    def view(self, x: Vector) -> None:
        """Make the parameters views of ``x``; the vector that they were views of is let go.

        Args:
            x: [P] or [P + Q].
        """
        if x is not self._viewed:
            views = self._layout.views(x[: self._layout.total])
            for parameter, view in zip(self._parameters, views, strict=True):
                parameter.data = view
            self._viewed = x

    def _outputs(self, x: Vector, inputs: Tensor) -> Tensor:
        self.view(x)
        with unchanged(self._parameters), self._precision(), self._uncounted():
            return outputs_of(self.model(inputs))

    def _value_and_grad(self, point: Vector, batch: Batch) -> tuple[Tensor, Vector]:
        value, grads = self._loss_and_grads(point, batch)
        return value, torch.cat([grad.reshape(-1) for grad in grads])

    def _in_parts(self, point: Vector, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Mean loss and gradients on the batch of a local step, of which a part is in memory."""
        if self._parts == 1:
            return self._loss_and_grads(point, batch)
        self.view(point)  # also where no part has a term
        value, count = point.new_zeros(()), 0
        grads = tuple(torch.zeros_like(parameter.detach()) for parameter in self._parameters)
        for inputs, labels in zip(*(leaf.tensor_split(self._parts) for leaf in batch), strict=True):
            weight = self.loss.count(labels)
            if weight:  # none of a part without examples, where the batch has fewer than parts
                mean, own = self._loss_and_grads(point, Batch(inputs, labels))
                value = value + weight * mean
                torch._foreach_add_(grads, own, alpha=weight)
            count += weight
        torch._foreach_div_(grads, max(count, 1))
        return value / max(count, 1), grads

    def _loss_and_grads(self, point: Vector, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.chain is not None and self.chain.takes(batch):
            self.view(point)
            return self.chain.loss_and_grads(self._parameters, batch)
        value = self.loss(self._outputs(point, batch.inputs), batch.labels)
        return value.detach(), torch.autograd.grad(value, self._parameters)


class _OneBatch:
    """See ``BatchFunction``."""

    __slots__ = ("_batch", "_gradient", "_seed")

    def __init__(self, gradient: Gradient, batch: Batch, seed: int) -> None:
        self._gradient, self._batch, self._seed = gradient, batch, seed

    def gradient(
        self, point: Vector, terms: LossTerms | None, statistics: Vector | None
    ) -> tuple[Tensor, Vector, Vector | None]:
        gradient, moved = self._gradient, None if statistics is None else self._gradient.statistics
        if moved is not None and statistics is not None:
            moved.load(statistics)
        if terms is None:
            value, grad = gradient.stochastic(point, self._batch, self._seed)
        else:
            value, grad = gradient.of_terms(point, self._batch, self._seed, terms)
        return value, grad, None if moved is None else moved.taken()

    def forward(self, point: Vector) -> Forward:
        return self._gradient.forward(point, self._batch, self._seed)


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
