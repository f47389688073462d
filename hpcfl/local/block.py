"""Train a block of clients at once, through hooks that are written for one client.

The hooks run under ``torch.func.vmap``; the gradients that they take are computed for K models in
one pass (see ``hpcfl.local.block_gradients``).  The number of clients K and the width of a batch
are fixed for a run, and slots without a client are filled, so that a client's bits do not depend on
the other clients of its block.  A client that has taken all its steps keeps its values until the
others have taken theirs.  Equal to ``Sequential`` up to rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from hpcfl.algorithms.facts import Client, Forward, LossTerms
from hpcfl.errors import ClientError, HpcflError
from hpcfl.local.block_gradients import Batches, BlockGradients
from hpcfl.local.draws import drawn
from hpcfl.local.grad import OneAtATime
from hpcfl.local.layers import VmapReductions, stacked
from hpcfl.local.padded_batches import PaddedBatches, Step
from hpcfl.local.sequential import Sequential
from hpcfl.local.step import local_step
from hpcfl.local.task import ClientResult, ClientTask, ClientTensors, tensors_of
from hpcfl.types import Vector

# y [K, P]; the clients' local quantities and the states of the optimiser, [K, ...] each
Carry = tuple[Tensor, Any, Any]
StepFunction = Callable[[Carry, ClientTensors, Step], tuple[Carry, Tensor]]


class Block:
    """Trains the clients of a rank, K at a time.

    Args:
        sequential: the executor for one client at a time; its algorithm and its optimiser apply
            here too.
        gradients: of K models.
        batches: pads the clients' batches to one width.
        shared: for each field of a client's state, whether it is the model that the client
            received.
        wrap: makes a faster step function of the same values, see ``hpcfl.local.cuda_graph``.
    """

    def __init__(
        self,
        sequential: Sequential,
        gradients: BlockGradients,
        batches: PaddedBatches,
        shared: Sequence[bool],
        wrap: Callable[[StepFunction], StepFunction],
    ) -> None:
        self._sequential, self._algorithm = sequential, sequential.algorithm
        self._gradients, self._batches, self._size = gradients, batches, batches.size
        self._shared = shared
        self._step = wrap(self._step_without_graph)
        self._reductions = VmapReductions if gradients.on_gpu else nullcontext

    def full_gradients(
        self, points: Sequence[Vector], tasks: Iterable[ClientTask]
    ) -> list[tuple[Vector, ...]]:
        """Full gradients by ``Sequential``: their batches are large enough for one client."""
        return self._sequential.full_gradients(points, tasks)

    def train(
        self,
        message: Any,
        tasks: Sequence[ClientTask],
        states: list[Any],
        *,
        local_models: bool = False,
    ) -> list[ClientResult]:
        """Train as ``Sequential.train`` does, K clients at a time.

        Raises:
            ClientError: the data, the model or the algorithm raised for one client of a block; the
                error names the first client of the block and lists the others.
        """
        results: list[ClientResult] = []
        for k in range(0, len(tasks), self._size):
            block = tasks[k : k + self._size]
            try:
                results += self._train_block(
                    message, block, states[k : k + self._size], local_models
                )
            except HpcflError:
                raise
            except Exception as e:
                others = ", ".join(str(task.client_id) for task in block[1:])
                stage = f"in a block with clients {others}" if others else "in a block"
                raise ClientError(block[0].client_id, block[0].round + 1, None, stage) from e
        return results

    def _train_block(
        self, message: Any, tasks: Sequence[ClientTask], states: list[Any], local_models: bool
    ) -> list[ClientResult]:
        """The local rounds of at most K clients."""
        device = message.x.device
        clients = self._stack([tensors_of(task.client) for task in tasks])
        clients = tree_map(lambda leaf: leaf.to(device), clients)
        before = self._stack(states)

        def begin(state: Any, tensors: ClientTensors) -> Carry:
            client = Client(**tensors)
            local = self._algorithm.begin(message, state, client)
            y = self._algorithm.first_point(message, state, client)
            return y, local, self._sequential.descent.init(y)

        with self._reductions():
            carry: Carry = vmap(begin)(before, clients)
        # In float64, as in the sequential executor: a sum of many steps' losses.
        total = torch.zeros(self._size, dtype=torch.float64, device=device)
        for step in self._batches.steps(tasks):
            carry, losses = self._step(carry, clients, step)
            total += losses
        # The next replay of a CUDA graph overwrites its outputs, and an upload may be one of them.
        carry = tree_map(torch.clone, carry)

        def finish(y: Vector, local: Any, state: Any, tensors: ClientTensors) -> tuple[Any, Any]:
            client = Client(**tensors)
            found: tuple[Any, Any] = self._algorithm.finish(y, local, message, state, client)
            return found

        wanted = self._algorithm.client_draws
        draws = [drawn(wanted, message.x, t.seed, t.round, t.client_id) for t in tasks]
        clients = {**clients, "draws": self._stack(draws)}
        with self._reductions():
            uploads, after = vmap(finish)(*carry[:2], before, clients)
        losses = total / clients["steps"]
        return [
            ClientResult(
                _slot(uploads, k),
                # Cloned: a view would keep the states of all K clients in memory for as long as
                # the store keeps one of them.
                with_received(
                    tree_map(lambda leaf, k=k: leaf[k].clone(), after), self._shared, message.x
                ),
                losses[k],
                carry[0][k] if local_models else carry[0].new_empty(0),
            )
            for k in range(len(tasks))
        ]

    def _stack(self, trees: Sequence[Any]) -> Any:
        """[K, ...] of every leaf; slots without a client repeat the first client's values."""
        filled = [*trees, *[trees[0]] * (self._size - len(trees))]
        return tree_map(lambda *leaves: torch.stack(leaves), *filled)

    def _step_without_graph(
        self, carry: Carry, clients: ClientTensors, step: Step
    ) -> tuple[Carry, Tensor]:
        """One local step of K clients, and their losses [K]: 0 for inactive clients."""
        algorithm, descent = self._algorithm, self._sequential.descent

        def step_one(
            y: Vector, local: Any, state: Any, tensors: ClientTensors, active: Tensor
        ) -> tuple[Carry, Tensor]:
            client = Client(**{**tensors, "step": step.number})
            grad = PaddedGradient(self._gradients, step.batches, stacked)
            start, along, scale, new_local, new_state = local_step(
                algorithm, descent, y, local, state, grad, client
            )
            new_y = start - scale * client.lr * along
            loss = torch.zeros_like(client.lr) if grad.loss is None else grad.loss
            # A client that has finished must not move: the gradient of its filled batch is not its
            # own.  A leaf that a hook returned unchanged needs no selection.
            carried = tree_map(
                lambda new, old: old if new is old else torch.where(active, new, old),
                (new_y, new_local, new_state),
                (y, local, state),
            )
            return carried, loss.masked_fill(~active, 0.0)

        with self._reductions():
            stepped: tuple[Carry, Tensor] = vmap(step_one)(*carry, clients, step.active)
        return stepped


class PaddedGradient:
    """The gradient of one client's padded batch, see ``Grad``.

    Args:
        gradients: of all clients of a block, or of one in a lane.
        batches: of the same.
        call: calls a function of their tensors with the tensors of the client, as ``stacked``
            does inside the block's ``vmap``.
    """

    def __init__(
        self,
        gradients: BlockGradients,
        batches: Batches,
        call: Callable[..., Any],
    ) -> None:
        self._gradients, self._batches, self._call = gradients, batches, call
        self._calls = OneAtATime()
        self.loss: Tensor | None = None  # of the job, at the point of the first call
        self.statistics: Tensor | None = None  # [Q], which the first call moves; or None

    def __call__(self, point: Vector, loss: LossTerms | None = None) -> Vector:
        """The gradient at ``point``."""
        self._calls.check()
        terms = None if loss is None else self._calls.guarded(loss)
        before = () if self.loss is not None or self.statistics is None else (self.statistics,)
        value, gradient, *after = self._call(
            lambda points, *statistics: self._gradients(points, self._batches, terms, *statistics),
            point,
            *before,
        )
        if after:
            (self.statistics,) = after
        if self.loss is None:
            self.loss = value
        return gradient  # type: ignore[no-any-return]

    def forward(self, point: Vector) -> Forward:
        """What the model makes of the batch at ``point``, without gradient."""
        self._calls.check()
        return Forward(
            *self._call(lambda points: self._gradients.forward(points, self._batches), point)
        )


def with_received(state: Any, shared: Sequence[bool], x: Vector) -> Any:
    """The state of a client, where the ``shared`` fields are the received model itself."""
    fields = zip(shared, state, strict=True)
    return type(state)(*(x if same else leaf for same, leaf in fields))


def _slot(tree: Any, k: int) -> Any:
    """The leaves of the client in slot ``k``."""
    return type(tree)(*(leaf[k] for leaf in tree))
