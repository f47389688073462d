"""The interface of executors, and how those for many clients at once are built."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from hpcfl.local.block import Block, StepFunction
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.local.client_pool import ClientPool
from hpcfl.local.cuda_graph import CudaGraphStep
from hpcfl.local.lanes import LaneGradients, Lanes
from hpcfl.local.layers import PAD_MULTIPLE
from hpcfl.local.padded_batches import PaddedBatches
from hpcfl.local.sequential import Sequential
from hpcfl.local.task import ClientResult, ClientTask
from hpcfl.types import Vector

MAX_BLOCK_SIZE = 32  # clients in a block where the job gives no block_size


class Executor(Protocol):
    """Trains clients; see ``hpcfl.local.sequential``, the reference."""

    def full_gradients(
        self, points: Sequence[Vector], tasks: Iterable[ClientTask]
    ) -> list[tuple[Vector, ...]]:
        """Each client's gradients at these points of its mean loss over all its examples."""
        ...

    def train(
        self,
        message: Any,
        tasks: Sequence[ClientTask],
        states: list[Any],
        *,
        local_models: bool = False,
    ) -> list[ClientResult]:
        """Train the client of every task, all from the same message."""
        ...


def block_executor(
    sequential: Sequential,
    clients: ClientPool,
    x: Vector,
    *,
    shared: Sequence[bool],
    size: int,
    triton: bool = False,
) -> Block:
    """The block executor of ``size`` clients; on a GPU it replays one CUDA graph a step.

    Args:
        sequential: whose algorithm, model, loss and precision it takes.
        clients: give the width of the widest batch, and an example.
        x: [P], any point: the model is tried there.
        shared: for each field of a client's state, whether it is the model that the client
            received.
        size: K.
        triton: compute layers by Triton kernels, on a GPU.

    Raises:
        Exception: whatever the model raises where it cannot be computed for many clients at once.
    """
    cuda, gradient = x.device.type == "cuda", sequential.gradient
    # Grouped convolutions are the faster ones on a CPU (1.8 times on LeNet), and slow on GPUs.
    gradients = BlockGradients(
        gradient.model,
        gradient.loss,
        "triton" if triton else "products" if cuda else "grouped",
        bf16=gradient.bf16,
        clip=gradient.clip,
        statistics=gradient.statistics,
    )
    gradients.probe(x, clients.examples_to_try())
    width = padded_width(clients.width, x.device, bf16=gradient.bf16)
    batches = PaddedBatches(size, width, clients.block_batches())
    return Block(sequential, gradients, batches, shared, CudaGraphStep if cuda else _unchanged)


def lane_executor(
    sequential: Sequential, clients: ClientPool, x: Vector, *, shared: Sequence[bool], size: int
) -> Lanes:
    """The executor of ``size`` lanes, for a GPU.

    Args:
        sequential: whose algorithm, model, loss and precision it takes.
        clients: give the width of the widest batch, and an example.
        x: [P], any point: the model is tried there.
        shared: for each field of a client's state, whether it is the model that the client
            received.
        size: K.

    Raises:
        Exception: whatever the model raises where it cannot be computed for padded batches.
    """
    gradient = sequential.gradient
    gradients = LaneGradients(
        gradient.model,
        gradient.loss,
        bf16=gradient.bf16,
        clip=gradient.clip,
        statistics=gradient.statistics,
    )
    pair = clients.examples_to_try()
    gradients.probe(x, pair)
    batches = PaddedBatches(size, clients.width, clients.block_batches())
    most = int(clients.steps_per_round.max())
    return Lanes(sequential, gradients, batches, pair, shared, most)


def padded_width(examples: int, device: torch.device, *, bf16: bool) -> int:
    """The width to which a block pads its batches, the widest of which has so many examples.

    On a CPU a multiple of ``PAD_MULTIPLE``, or half of it for elements of 4 bytes: kernels round
    the examples left over by whole vectors differently, and a client's bits would depend on its
    slot in the block.  A GPU's kernels treat all examples alike.
    """
    if device.type == "cuda":
        return examples
    multiple = PAD_MULTIPLE if bf16 else PAD_MULTIPLE // 2
    return -(-examples // multiple) * multiple


def _unchanged(step: StepFunction) -> StepFunction:
    return step
