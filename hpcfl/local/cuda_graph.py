"""Record a local step as a CUDA graph once, and replay it for every step of every block."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

WARM = 3  # plays before a recording, in which libraries make their choices and their buffers


class CudaGraphStep:
    """Plays a pure function of trees of CUDA tensors, whose shapes never change, as a graph.

    What it returns is overwritten by the next call, which may be handed it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._recorded: _Recorded | None = None

    def __call__(self, *trees: Any) -> Any:
        """The function's value."""
        if self._recorded is None:
            # The function is pure: what it is played for here leaves no trace.
            for _ in range(WARM):
                _aside(self._function, trees)
            self._recorded = _record(self._function, trees)
        recorded = self._recorded
        for kept, given in zip(recorded.inputs, tree_leaves(trees), strict=True):
            kept.copy_(given)
        recorded.graph.replay()
        return recorded.outputs


def _aside(function: Callable[..., Any], trees: Any) -> None:
    """Play it on a stream of its own, as a recording wants its warm-up."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    here = torch.cuda.current_stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        function(*trees)
    here.wait_stream(aside)


class _Recorded(NamedTuple):
    """A graph, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: Any


def _record(function: Callable[..., Any], trees: Any) -> _Recorded:
    leaves, spec = tree_flatten(trees)
    inputs = [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*tree_unflatten(inputs, spec))
    return _Recorded(graph, inputs, outputs)
