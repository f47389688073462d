"""The interface of executors, and how the block executor is built."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from hpcfl.algorithms.base import Algorithm
from hpcfl.local.block import Block, Play
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.local.client_pool import ClientPool
from hpcfl.local.cuda_graph import CudaGraphStep
from hpcfl.local.layers import PAD_MULTIPLE
from hpcfl.local.padded_batches import PaddedBatches
from hpcfl.local.sequential import Sequential
from hpcfl.local.step import ClientResult, ClientTask
from hpcfl.types import Loss, Vector

MOST = 32  # clients in a block, unless the job says more


class Executor(Protocol):
    """Plays local rounds; see ``hpcfl.local.sequential``, the reference."""

    def full_gradients(self, x: Vector, tasks: Iterable[ClientTask]) -> list[Vector]:
        """Each client's gradient at ``x`` of its mean loss over all its examples."""
        ...

    def train(
        self, message: Any, tasks: Sequence[ClientTask], states: list[Any], *, ends: bool = False
    ) -> list[ClientResult]:
        """Play every task's local round, all from the same message."""
        ...


def block_executor(
    algorithm: Algorithm,
    model: nn.Module,
    loss: Loss,
    population: ClientPool,
    x: Vector,
    one_by_one: Sequential,
    *,
    shared: Sequence[bool],
    size: int,
    weight_decay: float,
    bf16: bool,
    clip: float | None,
) -> Block:
    """The block executor of ``size`` clients; on a GPU it replays one graph a step.

    Args:
        algorithm: whose hooks are played.
        model: of one client.
        loss: the job's.
        population: gives the widest batch, and an example.
        x: [P], any point.
        one_by_one: computes full gradients.
        shared: for each field of a state, whether it is the model that the client received.
        size: K.
        weight_decay: the job's.
        bf16: whether the model autocasts.
        clip: the largest norm of a gradient, if there is one.

    Raises:
        Exception: whatever the model does that cannot be done for many clients at once.
    """
    cuda = x.device.type == "cuda"
    # Grouped convolutions are the faster ones on a CPU (1.8 times on LeNet), and slow on GPUs.
    gradients = BlockGradients(model, loss, "products" if cuda else "grouped", bf16=bf16, clip=clip)
    gradients.probe(x, population.example())
    width = padded_width(population.width, x.device, bf16=bf16)
    filling = PaddedBatches(size, width, population.block_batches())
    wrap = CudaGraphStep if cuda else _as_it_is
    return Block(algorithm, gradients, filling, size, weight_decay, shared, one_by_one, wrap)


def padded_width(examples: int, device: torch.device, *, bf16: bool) -> int:
    """The width to which a block's batches of so many examples are filled."""
    if device.type == "cuda":  # whose kernels do the same everywhere
        return examples
    alike = PAD_MULTIPLE if bf16 else PAD_MULTIPLE // 2  # see there: elements of 2 or 4 bytes
    return -(-examples // alike) * alike


def _as_it_is(play: Play) -> Play:
    return play
