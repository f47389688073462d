"""Train a block of clients at once, through hooks that are written for one client.

The hooks run under ``torch.func.vmap``; the gradients that they take are computed for K models in
one pass (see ``hpcfl.local.block_gradients``).  The number of clients K and the width of a batch
are fixed for a run, and slots without a client are filled, so that a client's bits do not depend on
the other clients of its block.  A client that has taken all its steps keeps its values until the
others have taken theirs.  Equal to ``Sequential`` up to rounding.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from hpcfl.algorithms.facts import Client
from hpcfl.clients.client_pool import ClientPool
from hpcfl.clients.padded_batches import PaddedBatch, PaddedBatches
from hpcfl.clients.task import (
    NUMBERS,
    ClientResult,
    ClientTask,
    ClientTensors,
    numbers_of,
    tensors_of,
)
from hpcfl.errors import ClientError, HpcflError
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.local.cuda_graph import CudaGraphStep
from hpcfl.local.executor import Executor
from hpcfl.local.grad import StepGrad
from hpcfl.local.layers import PAD_MULTIPLE, VmapReductions, stacked
from hpcfl.local.step import Carry, local_step
from hpcfl.types import Vector

# Of [K, ...] each: what the clients carry, the clients, and their batches; to the new carry and the
# losses [K].
StepFunction = Callable[[Carry, ClientTensors, PaddedBatch], tuple[Carry, Tensor]]
# Of parameters and gradients [K, ...], learning rates and active clients [K], and weight decay.
Descend = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor, float], None]


class Block(Executor):
    """Trains the clients of a rank, K at a time; see ``Executor``.

    Args:
        one: the executor for one client at a time; its algorithm, model and optimiser apply here
            too.
        gradients: of K models.
        batches: pads the clients' batches to one width.
        shared: see ``Executor``.
        wrap: makes a faster step function of the same values, see ``hpcfl.local.cuda_graph``.
        descend: where the steps are of plain SGD, takes one in place, see
            ``hpcfl.local.triton_kernels.update``; None: by the hooks.
    """

    def __init__(
        self,
        one: Executor,
        gradients: BlockGradients,
        batches: PaddedBatches,
        shared: Sequence[bool],
        wrap: Callable[[StepFunction], StepFunction],
        descend: Descend | None = None,
    ) -> None:
        super().__init__(one.algorithm, one.gradient, one.descent, batches.size, shared)
        self._gradients, self._batches = gradients, batches
        self._in_place = descend is not None
        self._step = wrap(
            self._step_without_graph if descend is None else partial(self._plain_step, descend)
        )
        self._reductions = VmapReductions if gradients.on_gpu else nullcontext

    def _train(
        self, message: Any, tasks: Sequence[ClientTask], states: Sequence[Any]
    ) -> list[ClientResult]:
        """Train at most K clients.

        Raises:
            ClientError: the data, the model or the algorithm raised for one of them; the error
                names the first client of the block and lists the others.
        """
        try:
            return self._train_block(message, tasks, states)
        except HpcflError:
            raise
        except Exception as e:
            others = ", ".join(str(task.client_id) for task in tasks[1:])
            stage = f"in a block with clients {others}" if others else "in a block"
            raise ClientError(tasks[0].client_id, tasks[0].round + 1, None, stage) from e

    def _train_block(
        self, message: Any, tasks: Sequence[ClientTask], states: Sequence[Any]
    ) -> list[ClientResult]:
        """The local rounds of at most K clients."""
        device = message.x.device
        clients = self._stacked([tensors_of(task.client) for task in tasks])
        numbers = numbers_of(self._filled([task.client for task in tasks]), device)
        clients |= zip(NUMBERS, numbers, strict=True)
        before = self._stacked(states)
        with self._reductions():
            carry: Carry = vmap(lambda state, own: self._begin(message, state, Client(**own)))(
                before, clients
            )
        if self._in_place:  # y is the received model now, if the algorithm begins there
            carry = carry._replace(y=carry.y.clone(memory_format=torch.contiguous_format))
        # In float64, as in the sequential executor: a sum of many steps' losses.
        total = torch.zeros(self._size, dtype=torch.float64, device=device)
        lr_of_step = tasks[0].lr_of_step  # that of all of them
        for step, batch in enumerate(self._batches.steps(tasks)):
            now = {**clients, "step": torch.full_like(total, step)}
            if lr_of_step is not None:
                now["lr"] = torch.full_like(total, lr_of_step(step))
            carry, losses = self._step(carry, now, batch)
            total += losses
        # The next replay of a CUDA graph overwrites its outputs, and an upload may be one of them.
        carry = tree_map(torch.clone, carry)
        clients["draws"] = self._stacked([self._draws(message, task) for task in tasks])
        if lr_of_step is not None:
            numbers = numbers_of(self._filled([task.finishing for task in tasks]), device)
            clients |= zip(NUMBERS, numbers, strict=True)
        with self._reductions():
            uploads, after = vmap(
                lambda state, own, carried: self._finish(message, state, Client(**own), carried)
            )(before, clients, carry)
        losses = total / clients["steps"]
        return [
            # The state is cloned: a view would keep the states of all K clients in memory for as
            # long as the store keeps one of them.
            ClientResult(
                _slot(uploads, k), tree_map(torch.clone, _slot(after, k)), losses[k], carry.y[k]
            )
            for k in range(len(tasks))
        ]

    def _stacked(self, trees: Sequence[Any]) -> Any:
        """[K, ...] of every leaf."""
        return tree_map(lambda *leaves: torch.stack(leaves), *self._filled(trees))

    def _filled(self, each: Sequence[Any]) -> Sequence[Any]:
        """K of them: slots without a client repeat the first client's."""
        return [*each, *[each[0]] * (self._size - len(each))]

    def _step_without_graph(
        self, carry: Carry, clients: ClientTensors, batch: PaddedBatch
    ) -> tuple[Carry, Tensor]:
        """One local step of K clients, and their losses [K]: 0 for inactive clients."""

        def step_one(old: Carry, tensors: ClientTensors, active: Tensor) -> tuple[Carry, Tensor]:
            client = Client(**tensors)
            grad = StepGrad(self._gradients.on(batch, stacked), old.statistics)
            new = local_step(self.algorithm, self.descent, old, grad, client)
            loss = torch.zeros_like(client.lr) if grad.loss is None else grad.loss
            # A client that has finished must not move: the gradient of its filled batch is not its
            # own.  A leaf that a hook returned unchanged needs no selection.
            carried = tree_map(
                lambda after, before: (
                    before if after is before else torch.where(active, after, before)
                ),
                new,
                old,
            )
            return carried, loss.masked_fill(~active, 0.0)

        with self._reductions():
            found: tuple[Carry, Tensor] = vmap(step_one)(carry, clients, batch.active)
        return found

    def _plain_step(
        self, descend: Descend, carry: Carry, clients: ClientTensors, batch: PaddedBatch
    ) -> tuple[Carry, Tensor]:
        """The same of plain SGD: ``carry.y`` changes in place."""
        with self._reductions():
            losses, parameters, grads = self._gradients.of_parameters(carry.y, batch)
        rates = clients["lr"].to(carry.y.dtype)
        descend(parameters, grads, rates, batch.active, self.descent.decay)
        return carry, losses.masked_fill(~batch.active, 0.0)


def block_executor(
    one: Executor,
    clients: ClientPool,
    x: Vector,
    *,
    shared: Sequence[bool],
    size: int,
    triton: bool = False,
) -> Block:
    """The block executor of ``size`` clients; on a GPU it replays one CUDA graph a step.

    Args:
        one: whose algorithm, model, loss and precision it takes.
        clients: give the width of the widest batch, and an example.
        x: [P], any point: the model is tried there.
        shared: see ``Executor``.
        size: K.
        triton: compute layers by Triton kernels, on a GPU.

    Raises:
        Exception: whatever the model raises where it cannot be computed for many clients at once.
    """
    cuda, gradient = x.device.type == "cuda", one.gradient
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
    descend: Descend | None = None
    if triton and one.plain_sgd and x.dtype == torch.float32:
        from hpcfl.local.triton_kernels.update import descend as in_one_pass

        descend = in_one_pass
    return Block(one, gradients, batches, shared, CudaGraphStep if cuda else _unchanged, descend)


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


def _slot(tree: Any, k: int) -> Any:
    """The leaves of the client in slot ``k``."""
    return type(tree)(*(leaf[k] for leaf in tree))
