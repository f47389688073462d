"""Capture a local step as a CUDA graph once, and replay it for every step of every block."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

WARMUP_CALLS = 3  # before a capture: libraries choose kernels and allocate buffers in them


class CudaGraphStep:
    """Computes a function of trees of CUDA tensors of fixed shapes, as a CUDA graph.

    The next call overwrites the outputs of this one, and may take them as its inputs.  An input
    that the function changes in place is the graph's own copy, and may be returned as an output.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._captured: Captured | None = None

    def __call__(self, *trees: Any) -> Any:
        """The function's value."""
        if self._captured is None:
            self._captured = capture(self._function, trees, torch.cuda.Stream())  # type: ignore[no-untyped-call]
            # It may hold this object: without a circle the graph's memory is freed with its owner.
            del self._function
        captured = self._captured
        for static, given in zip(captured.inputs, tree_leaves(trees), strict=True):
            if static is not given:  # an output that was changed in place
                static.copy_(given)
        captured.graph.replay()
        return captured.outputs


def _warm_up(function: Callable[..., Any], trees: Any, stream: torch.cuda.Stream) -> None:
    """Call it on another stream than the current one, as PyTorch requires before a capture."""
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_CALLS):
            function(*trees)
    current.wait_stream(stream)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect garbage now and not inside: the end of another graph there would fail the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Captured(NamedTuple):
    """A graph, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: Any


def capture(function: Callable[..., Any], trees: Any, stream: torch.cuda.Stream) -> Captured:
    """Capture a function of trees of tensors on this stream, not on the one that torch would take.

    Graphs of one stream share workspaces of cuBLAS, and the end of one would free it under the
    others.  torch has 32 streams, which it hands out in turn.
    """
    leaves, spec = tree_flatten(trees)
    inputs = [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves]
    _warm_up(function, tree_unflatten(inputs, spec), stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may free pinned memory or poll NCCL meanwhile: in the default mode "global" any
    # such call makes the capture fail.
    current, raised = torch.cuda.current_stream(), None
    try:
        with (
            _no_garbage_collection(),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            try:
                outputs = function(*tree_unflatten(inputs, spec))
            except Exception as e:
                raised = e
                raise
    except Exception as e:  # noqa: BLE001 - it, or its cause, is raised again
        # The end of a failed capture raises an error of its own, and leaves its stream current.
        torch.cuda.set_stream(current)
        raise raised or e from None
    return Captured(graph, inputs, outputs)
