"""Gradients of K models on K batches by one backward pass."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.local.layers import Convolutions, VmapLayers
from hpcfl.local.step import clipped
from hpcfl.models.dropout import dropouts
from hpcfl.models.flat_vector import layout_of
from hpcfl.types import Batch, Loss

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
        loss: Loss,
        convolutions: Convolutions,
        *,
        bf16: bool = False,
        clip: float | None = None,
    ) -> None:
        self._model, self._loss, self._convolutions = model, loss, convolutions
        self._layout, self._dropouts = layout_of(model), dropouts(model)
        device = next(model.parameters()).device.type
        self.on_gpu = device != "cpu"
        self._precision = partial(autocast_bfloat16, device) if bf16 else nullcontext
        self._clip = clip

    def __call__(self, points: Tensor, batches: Batches) -> tuple[Tensor, Tensor]:
        """Losses [K] and clipped gradients [K, P]."""
        layers = VmapLayers(self._convolutions, pad=not self.on_gpu)
        with torch.enable_grad():
            views = self._views(points)
            losses = self._losses(layers, views, batches)
            # Each loss depends on its own client's parameters alone: the gradient of their sum
            # holds the gradient of every client.
            grads = torch.autograd.grad(losses.sum(), views)
        whole = torch.cat([grad.reshape(len(points), -1) for grad in grads], 1)
        if self._clip is not None:
            whole = clipped(whole, self._clip)
        return losses.detach(), whole

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
        layers = VmapLayers(self._convolutions, pad=not self.on_gpu)
        seeds = torch.zeros(2, dtype=torch.int64, device=x.device)
        points = x.expand(2, -1)
        for width in (1, 2):
            inputs, labels = (leaf[:1].expand(2, width, *leaf.shape[1:]) for leaf in pair)
            batches = Batches(inputs, labels, torch.ones(2, width, device=x.device), seeds)
            with torch.no_grad():
                self._losses(layers, self._views(points), batches)
        inputs = pair.inputs
        if inputs.is_floating_point() and torch.equal(inputs[0], inputs[1]):
            # Statistics of a batch are the same whatever copies of one example it has.
            other = inputs[1].flatten().flip(0).view_as(inputs[1])  # values of the data's own
            pair = pair._replace(inputs=torch.stack([inputs[0], other]))
        grads = []
        for padding in (0, 1):
            inputs, labels = (
                torch.cat([leaf, leaf[:padding]]).expand(2, -1, *leaf.shape[1:]) for leaf in pair
            )
            counts = torch.tensor([1.0, 1.0, 0.0][: 2 + padding], device=x.device).expand(2, -1)
            grads.append(self(points, Batches(inputs, labels, counts, seeds))[1])
        alone, padded = grads
        if (padded - alone).norm() > _ROUNDING * alone.norm():
            raise NotImplementedError(
                "an example's gradient depends on the other examples of its batch, as with batch "
                "normalization, and blocks pad batches by copies of an example"
            )

    def _views(self, points: Tensor) -> list[Tensor]:
        """Every parameter of every client, [K, ...] each."""
        vectors = points.split_with_sizes(self._layout.sizes, 1)
        clients = len(points)
        return [
            vector.view(clients, *shape).detach().requires_grad_()
            for vector, shape in zip(vectors, self._layout.shapes, strict=True)
        ]

    def _losses(self, layers: VmapLayers, views: Sequence[Tensor], batches: Batches) -> Tensor:
        names = self._layout.names

        def one(
            parameters: Sequence[Tensor],
            inputs: Tensor,
            labels: Tensor,
            counts: Tensor,
            seed: Tensor,
        ) -> Tensor:
            for dropout in self._dropouts:
                dropout.begin(seed, len(inputs))
            named = dict(zip(names, parameters, strict=True))
            with self._precision():
                outputs = functional_call(self._model, named, (inputs,))
            return self._loss(outputs, labels, counts)

        try:
            with layers:
                found: Tensor = vmap(one)(views, *batches)
        finally:
            for dropout in self._dropouts:
                dropout.end()
        return found
