"""Gradients of K models on K batches by one backward pass."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.algorithms.facts import Forward, LossTerms
from hpcfl.clients.padded_batches import PaddedBatch
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.local.grad import BatchFunction
from hpcfl.local.gradient import as_forward, check_terms, clipped
from hpcfl.local.layers import Convolutions, PaddedLayers, VmapLayers
from hpcfl.models.dropout import dropouts
from hpcfl.models.features import inputs_of
from hpcfl.models.flat_vector import last_dense, layout_of
from hpcfl.models.losses import TermLoss
from hpcfl.models.outputs import outputs_of
from hpcfl.models.statistics import RunningStatistics
from hpcfl.types import Batch, Vector

_ROUNDING = 0.05  # of a gradient's norm: more than the rounding of bfloat16


class BlockGradients:
    """The gradients of K clients' mean losses at their own flat vectors [K, P].

    Args:
        model: of one client.
        loss: the mean over the examples whose count is 1.
        convolutions: how to compute them, see ``VmapLayers``.
        bf16: whether to autocast to bfloat16.
        clip: the largest norm of each client's gradient.
        statistics: the model's running statistics, if batches move any.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: TermLoss,
        convolutions: Convolutions = "grouped",
        *,
        bf16: bool = False,
        clip: float | None = None,
        statistics: RunningStatistics | None = None,
    ) -> None:
        self._model, self._loss, self._convolutions = model, loss, convolutions
        self._statistics = statistics
        self._uncounted = nullcontext if statistics is None else statistics.uncounted
        self._layout, self._dropouts = layout_of(model), dropouts(model)
        self._last_dense = last_dense(model)
        self._holders = _holders(model)
        device = next(model.parameters()).device.type
        self.on_gpu = device != "cpu"
        self._precision = partial(autocast_bfloat16, device) if bf16 else nullcontext
        self._clip = clip

    def __call__(
        self,
        points: Tensor,
        batches: PaddedBatch,
        terms: LossTerms | None = None,
        statistics: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Losses [K] and clipped gradients [K, P]; then the new ``statistics``, if there are any.

        Args:
            points: [K, P].
            batches: of the clients.
            terms: of a loss, whose mean has the gradients; None: of the job's.
            statistics: [K, Q], the running statistics before the batches; None: none are moved.
        """
        losses, _, grads, moved = self._parts(points, batches, terms, statistics)
        whole = torch.cat([grad.reshape(*points.shape[:-1], -1) for grad in grads], -1)
        if self._clip is not None:
            whole = clipped(whole, self._clip)
        return (losses, whole) if statistics is None else (losses, whole, moved)

    def of_parameters(
        self, points: Tensor, batches: PaddedBatch
    ) -> tuple[Tensor, list[Tensor], tuple[Tensor, ...]]:
        """Losses [K]; then each parameter [K, ...], a view of ``points``, and its gradient.

        The gradients are not clipped.
        """
        losses, views, grads, _ = self._parts(points, batches)
        return losses, views, grads

    def _parts(
        self,
        points: Tensor,
        batches: PaddedBatch,
        terms: LossTerms | None = None,
        statistics: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor], tuple[Tensor, ...], Tensor]:
        """Losses [K], the parameters and their gradients, and the statistics after the batches."""
        with torch.enable_grad():
            views = self._views(points)
            (minimised, losses), moved = self._losses(views, batches, terms, statistics)
            # Each loss depends on its own client's parameters alone: the gradient of their sum
            # holds the gradient of every client.
            grads = torch.autograd.grad(minimised.sum(), views)
        return losses.detach(), views, grads, moved

    def forward(self, points: Tensor, batches: PaddedBatch) -> tuple[Tensor, ...]:
        """The fields of ``Forward``, of every client [K, ...], without gradient."""
        with torch.no_grad():
            found: tuple[Tensor, ...]
            found, _ = self._of_forward(
                self._views(points), batches, lambda made, counts: tuple(made)
            )
        return found

    def on(self, batches: PaddedBatch, call: Callable[..., Any]) -> BatchFunction:
        """The loss of one client's batch.

        Args:
            batches: of all clients of a block, or of the one of a lane.
            call: calls a function of their tensors with those of the client, as ``stacked`` does
                inside the block's ``vmap``.
        """
        return _PaddedBatchFunction(self, batches, call)

    def probe(self, x: Tensor, pair: Batch) -> None:
        """Try the model on batches of one and of two examples, of two clients.

        Args:
            x: [P], any point.
            pair: a batch of two examples.

        Raises:
            NotImplementedError: the model drops out along another dimension than that of examples,
                or padding a batch changes its gradient.
            Exception: whatever else the model raises under vmap.
        """
        seed = torch.zeros((), dtype=torch.int64, device=x.device)
        point = self._of_two(x)
        for width in (1, 2):
            inputs, labels = (leaf[:1].expand(width, *leaf.shape[1:]) for leaf in pair)
            counts = torch.ones(width, device=x.device)
            batches = PaddedBatch(*map(self._of_two, (inputs, labels, counts, seed)))
            with torch.no_grad():
                self._losses(self._views(point), batches)
        inputs = pair.inputs
        if inputs.is_floating_point() and torch.equal(inputs[0], inputs[1]):
            # Statistics of a batch are the same whatever copies of one example it has.
            other = inputs[1].flatten().flip(0).view_as(inputs[1])  # values of the data's own
            pair = pair._replace(inputs=torch.stack([inputs[0], other]))
        grads = []
        for padding in (0, 1):
            inputs, labels = (torch.cat([leaf, leaf[:padding]]) for leaf in pair)
            counts = torch.tensor([1.0, 1.0, 0.0][: 2 + padding], device=x.device)
            batches = PaddedBatch(*map(self._of_two, (inputs, labels, counts, seed)))
            grads.append(self(point, batches)[1])
        alone, padded = grads
        if (padded - alone).norm() > _ROUNDING * alone.norm():
            raise NotImplementedError(
                "an example's gradient depends on the other examples of its batch, and blocks pad "
                "batches by copies of an example"
            )

    def _views(self, points: Tensor) -> list[Tensor]:
        """Every parameter of every client, [K, ...] each."""
        vectors = points.split_with_sizes(self._layout.sizes, -1)
        return [
            vector.view(*points.shape[:-1], *shape).detach().requires_grad_()
            for vector, shape in zip(vectors, self._layout.shapes, strict=True)
        ]

    def _losses(
        self,
        views: Sequence[Tensor],
        batches: PaddedBatch,
        terms: LossTerms | None = None,
        statistics: Tensor | None = None,
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """What is minimised [K] and the job's losses [K]; the statistics after the batches."""
        if terms is None:
            losses, moved = self._each(views, batches, self._loss, statistics)
            return (losses, losses), moved

        def both(made: Forward, counts: Tensor) -> tuple[Tensor, ...]:
            found = terms(made)
            check_terms(found, made.losses)
            return tuple(
                self._loss.mean(part, made.labels, counts) for part in (found, made.losses)
            )

        # The function of the terms may hold tensors of the clients from the vmap around this one:
        # they are taken client by client, as both have the same level and the same clients.
        (minimised, losses), moved = self._of_forward(views, batches, both, statistics)
        return (minimised, losses), moved

    def _of_forward(
        self,
        views: Sequence[Tensor],
        batches: PaddedBatch,
        function: Callable[[Forward, Tensor], tuple[Tensor, ...]],
        statistics: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """``function(forward, counts)`` of every client, and the statistics after the batches."""

        def of_outputs(outputs: Tensor, labels: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
            return function(as_forward(self._loss, outputs, labels, features, counts), counts)

        with inputs_of(self._last_dense) as features:
            return self._each(views, batches, of_outputs, statistics)

    def _each(
        self,
        views: Sequence[Tensor],
        batches: PaddedBatch,
        function: Callable[[Tensor, Tensor, Tensor], Any],
        statistics: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """``function(outputs, labels, counts)`` of every client, and their new ``statistics``."""
        names, holders = self._layout.names, self._holders
        moved = None if statistics is None else self._statistics
        if statistics is None:
            statistics = views[0].new_empty(*batches.seeds.shape, 0)

        def one(
            parameters: Sequence[Tensor],
            inputs: Tensor,
            labels: Tensor,
            counts: Tensor,
            seed: Tensor,
            before: Tensor,
        ) -> Any:
            for dropout in self._dropouts:
                dropout.begin(seed, len(inputs))
            named = {
                place: parameter
                for name, parameter in zip(names, parameters, strict=True)
                for place in holders[name]
            }
            layers.counts, layers.moves_statistics = counts, moved is not None
            after = before.clone()
            if moved is not None:
                named |= moved.pieces(after)  # which the layers move in place
            with self._precision(), self._uncounted():
                # Not tied by torch: it leaves them in a layer that the model has by two names.
                made = functional_call(self._model, named, (inputs,), tie_weights=False)
            return function(outputs_of(made), labels, counts), after

        layers = self._layers()
        try:
            with layers:
                found, after = self._mapped(one)(views, *batches, statistics)
                return found, after
        finally:
            layers.counts = None  # a tensor of the vmap that has ended
            for dropout in self._dropouts:
                dropout.end()

    def _layers(self) -> PaddedLayers:
        """The mode in which the model is called."""
        return VmapLayers(self._convolutions, pad=not self.on_gpu)

    def _mapped(self, one: Callable[..., Any]) -> Callable[..., Any]:
        """From a function of one client's tensors to the same of stacked ones."""
        return vmap(one)

    def _of_two(self, leaf: Tensor) -> Tensor:
        """The same tensor for two clients."""
        return leaf.expand(2, *leaf.shape)


class _PaddedBatchFunction:
    """See ``BatchFunction``."""

    def __init__(
        self, gradients: BlockGradients, batches: PaddedBatch, call: Callable[..., Any]
    ) -> None:
        self._gradients, self._batches, self._call = gradients, batches, call

    def gradient(
        self, point: Vector, terms: LossTerms | None, statistics: Vector | None
    ) -> tuple[Tensor, Vector, Vector | None]:
        value, gradient, *moved = self._call(
            lambda points, *before: self._gradients(points, self._batches, terms, *before),
            point,
            *(() if statistics is None else (statistics,)),
        )
        return value, gradient, moved[0] if moved else None

    def forward(self, point: Vector) -> Forward:
        return Forward(
            *self._call(lambda points: self._gradients.forward(points, self._batches), point)
        )


def _holders(model: nn.Module) -> dict[str, list[str]]:
    """For every parameter the names by which layers hold it, each layer once: its own is first."""
    found: dict[nn.Parameter, list[str]] = {}
    for name, layer in model.named_modules():
        for own, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(parameter, []).append(f"{name}.{own}" if name else own)
    return {names[0]: names for names in found.values()}
