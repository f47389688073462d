"""Gradients of K models on K batches by one backward pass."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.algorithms.base import Forward, LossTerms
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.local.layers import Convolutions, VmapLayers
from hpcfl.local.step import as_forward, check_terms, clipped
from hpcfl.models.dropout import dropouts
from hpcfl.models.features import inputs_of
from hpcfl.models.flat_vector import last_dense, layout_of
from hpcfl.models.losses import TermLoss
from hpcfl.types import Batch

_ROUNDING = 0.05  # of a gradient's norm: more than the rounding of bfloat16


class Batches(NamedTuple):
    """One batch of each of K clients, all padded to B examples."""

    inputs: Tensor  # [K, B, ...]
    labels: Tensor  # [K, B, ...]
    counts: Tensor  # [K, B], 1 for an example and 0 for padding
    seeds: Tensor  # [K] int64, of the dropout masks


class BlockGradients:
    """The gradients of K clients' mean losses at their own flat vectors [K, P].

    Args:
        model: of one client.
        loss: the mean over the examples whose count is 1.
        convolutions: how to compute them, see ``VmapLayers``.
        bf16: whether to autocast to bfloat16.
        clip: the largest norm of each client's gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: TermLoss,
        convolutions: Convolutions = "grouped",
        *,
        bf16: bool = False,
        clip: float | None = None,
    ) -> None:
        self._model, self._loss, self._convolutions = model, loss, convolutions
        self._layout, self._dropouts = layout_of(model), dropouts(model)
        self._last_dense = last_dense(model)
        device = next(model.parameters()).device.type
        self.on_gpu = device != "cpu"
        self._precision = partial(autocast_bfloat16, device) if bf16 else nullcontext
        self._clip = clip

    def __call__(
        self, points: Tensor, batches: Batches, terms: LossTerms | None = None
    ) -> tuple[Tensor, Tensor]:
        """Losses [K] and clipped gradients [K, P]; of the mean of other terms, if there are any."""
        with torch.enable_grad():
            views = self._views(points)
            minimised, losses = self._losses(views, batches, terms)
            # Each loss depends on its own client's parameters alone: the gradient of their sum
            # holds the gradient of every client.
            grads = torch.autograd.grad(minimised.sum(), views)
        whole = torch.cat([grad.reshape(*points.shape[:-1], -1) for grad in grads], -1)
        if self._clip is not None:
            whole = clipped(whole, self._clip)
        return losses.detach(), whole

    def forward(self, points: Tensor, batches: Batches) -> tuple[Tensor, ...]:
        """The fields of ``Forward``, of every client [K, ...], without gradient."""
        with torch.no_grad():
            found: tuple[Tensor, ...] = self._of_forward(
                self._views(points), batches, lambda made, counts: tuple(made)
            )
        return found

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
            batches = Batches(*map(self._of_two, (inputs, labels, counts, seed)))
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
            batches = Batches(*map(self._of_two, (inputs, labels, counts, seed)))
            grads.append(self(point, batches)[1])
        alone, padded = grads
        if (padded - alone).norm() > _ROUNDING * alone.norm():
            raise NotImplementedError(
                "an example's gradient depends on the other examples of its batch, as with batch "
                "normalization, and blocks pad batches by copies of an example"
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
        batches: Batches,
        terms: LossTerms | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What is minimised [K], and the job's losses [K]."""
        if terms is None:
            losses = self._each(views, batches, self._loss)
            return losses, losses

        def both(made: Forward, counts: Tensor) -> tuple[Tensor, ...]:
            found = terms(made)
            check_terms(found, made.losses)
            return tuple(
                self._loss.mean(part, made.labels, counts) for part in (found, made.losses)
            )

        # The function of the terms may hold tensors of the clients from the vmap around this one:
        # they are taken client by client, as both have the same level and the same clients.
        minimised, losses = self._of_forward(views, batches, both)
        return minimised, losses

    def _of_forward(
        self,
        views: Sequence[Tensor],
        batches: Batches,
        function: Callable[[Forward, Tensor], tuple[Tensor, ...]],
    ) -> Any:
        """``function(forward, counts)`` of every client."""

        def of_outputs(outputs: Tensor, labels: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
            return function(as_forward(self._loss, outputs, labels, features, counts), counts)

        with inputs_of(self._last_dense) as features:
            return self._each(views, batches, of_outputs)

    def _each(
        self,
        views: Sequence[Tensor],
        batches: Batches,
        function: Callable[[Tensor, Tensor, Tensor], Any],
    ) -> Any:
        """``function(outputs, labels, counts)`` of every client, stacked."""
        names = self._layout.names

        def one(
            parameters: Sequence[Tensor],
            inputs: Tensor,
            labels: Tensor,
            counts: Tensor,
            seed: Tensor,
        ) -> Any:
            for dropout in self._dropouts:
                dropout.begin(seed, len(inputs))
            named = dict(zip(names, parameters, strict=True))
            with self._precision():
                outputs = functional_call(self._model, named, (inputs,))
            return function(outputs, labels, counts)

        try:
            return self._mapped(one)(views, *batches)
        finally:
            for dropout in self._dropouts:
                dropout.end()

    def _mapped(self, one: Callable[..., Any]) -> Callable[..., Any]:
        """From a function of one client's tensors to the same of stacked ones."""

        def mapped(*trees: Any) -> Any:
            with VmapLayers(self._convolutions, pad=not self.on_gpu):
                return vmap(one)(*trees)

        return mapped

    def _of_two(self, leaf: Tensor) -> Tensor:
        """The same tensor for two clients."""
        return leaf.expand(2, *leaf.shape)
