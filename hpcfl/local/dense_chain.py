"""The gradient of a chain of dense layers, without autograd's graph."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hpcfl.models.losses import NO_CLASS, TermLoss, cross_entropy
from hpcfl.types import Batch

_MEAN = 1  # torch's number of the reduction
_CHAINED = (nn.Flatten, nn.Linear, nn.ReLU)


class DenseChain:
    """The mean cross-entropy of dense layers with ReLU between them, and its gradient.

    It calls the operations that autograd would call, in its order, so the bits are the same.  For
    the small models of many jobs, building and reading the graph takes as long as these operations.
    """

    def __init__(self, biases: Sequence[bool], *, flattens: bool) -> None:
        self._biases, self._flattens = biases, flattens

    @classmethod
    def of(
        cls, model: nn.Module, loss: TermLoss, parameters: Sequence[Tensor]
    ) -> "DenseChain | None":
        """The chain that ``model`` is; None where it is another model, or has another loss.

        Args:
            model: on a CPU.
            loss: of the job.
            parameters: the trained ones of the model, in order.
        """
        flattens, biases, own, after_dense = False, list[bool](), list[Tensor](), False
        for number, layer in enumerate(_layers(model)):
            if _has_hooks(layer) or type(layer) not in _CHAINED:
                return None
            if isinstance(layer, nn.Linear):
                # Of a column of width 1 autograd computes another product, with other last bits.
                if after_dense or (biases and layer.in_features == 1):
                    return None
                own += layer.parameters()
                biases.append(layer.bias is not None)
            elif isinstance(layer, nn.Flatten):
                if number or (layer.start_dim, layer.end_dim) != (1, -1):
                    return None
                flattens = True
            elif not after_dense:
                return None
            after_dense = isinstance(layer, nn.Linear)
        known = loss.fused is cross_entropy and after_dense
        same = [*map(id, own)] == [*map(id, parameters)]
        on_cpu = all(p.device.type == "cpu" and p._backward_hooks is None for p in parameters)
        return cls(biases, flattens=flattens) if known and same and on_cpu else None

    def takes(self, batch: Batch) -> bool:
        """Whether the batch has rows of features, or what is flattened to them, and classes."""
        return (self._flattens or batch.inputs.dim() == 2) and batch.labels.dim() == 1

    def loss_and_grads(
        self, parameters: Sequence[Tensor], batch: Batch
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The mean loss of a batch, and the gradient of each parameter."""
        with torch.no_grad():
            values = iter(parameters)
            weights, entered = list[Tensor](), list[Tensor]()
            rows = batch.inputs.flatten(1)
            for number, has_bias in enumerate(self._biases):
                weights.append(next(values))
                entered.append(rows.relu_() if number else rows)
                rows = linear(entered[-1], weights[-1], next(values) if has_bias else None)
            loss, descent = _cross_entropy(rows, batch.labels)
            grads = list[Tensor]()  # of the last parameter first
            for number in reversed(range(len(weights))):
                if self._biases[number]:
                    grads.append(descent.sum(0))
                grads.append(descent.t().mm(entered[number]))
                if number:
                    before = descent.mm(weights[number])
                    descent = torch.ops.aten.threshold_backward(before, entered[number], 0)
        return loss, tuple(reversed(grads))


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of chains in chains, in order; a module that is no chain is its only layer."""
    if type(model) is nn.Sequential and not _has_hooks(model):
        for layer in model:
            yield from _layers(layer)
    else:
        yield model


def _has_hooks(layer: nn.Module) -> bool:
    return any(
        getattr(layer, f"_{kind}_hooks")
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    )


def _cross_entropy(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Its mean, and the gradient with respect to ``outputs``."""
    aten, kind = torch.ops.aten, (None, _MEAN, NO_CLASS)
    logs = outputs.log_softmax(1)
    loss, weight = aten.nll_loss_forward(logs, labels, *kind)
    one = torch.ones_like(loss)
    of_logs = aten.nll_loss_backward(one, logs, labels, *kind, weight)
    return loss, aten._log_softmax_backward_data(of_logs, logs, 1, outputs.dtype)
