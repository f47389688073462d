"""Train a block of clients at once, through hooks that are written for one client.

The hooks run under ``torch.func.vmap``; a gradient that they ask for is that of K models in one
pass (see ``hpcfl.local.block_gradients``).  K and the width of a batch are fixed for a run, and
places without a client are filled, so that a client's bits do not depend on the other clients of
its block.  A client that has taken its steps does not change until all have.  Equal to
``Sequential`` up to rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from hpcfl.algorithms.base import Algorithm, Client
from hpcfl.errors import ClientError, HpcflError
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.local.layers import stacked
from hpcfl.local.padded_batches import PaddedBatches, Step
from hpcfl.local.sequential import Sequential
from hpcfl.local.step import ClientResult, ClientTask
from hpcfl.types import Vector

Carry = tuple[Tensor, Any]  # y [K, P] and what the clients hold during their steps, [K, ...] each
Play = Callable[[Carry, Client, Step], tuple[Carry, Tensor]]


class Block:
    """Trains the clients that a rank is given, K at a time.

    Args:
        algorithm: whose hooks are played.
        gradients: of K models.
        filling: lays their batches side by side.
        size: K.
        weight_decay: added to every direction.
        shared: for each field of a state, whether it is the model that the client received.
        one_by_one: computes full gradients, whose batches are large anyway.
        wrap: makes a step faster to play, see ``hpcfl.local.cuda_graph``.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        gradients: BlockGradients,
        filling: PaddedBatches,
        size: int,
        weight_decay: float,
        shared: Sequence[bool],
        one_by_one: Sequential,
        wrap: Callable[[Play], Play],
    ) -> None:
        self._algorithm, self._gradients, self._filling = algorithm, gradients, filling
        self._size, self._weight_decay = size, weight_decay
        self._shared, self._one_by_one = shared, one_by_one
        self._play = wrap(self._step)

    def full_gradients(self, x: Vector, tasks: Iterable[ClientTask]) -> list[Vector]:
        """As ``Sequential`` does, by it."""
        return self._one_by_one.full_gradients(x, tasks)

    def train(
        self, message: Any, tasks: Sequence[ClientTask], states: list[Any], *, ends: bool = False
    ) -> list[ClientResult]:
        """As ``Sequential`` does, K clients at a time.

        Raises:
            ClientError: a client's data, or the model or the algorithm, for one of several clients
                of which the first is named, raised.
        """
        trained: list[ClientResult] = []
        for k in range(0, len(tasks), self._size):
            own = tasks[k : k + self._size]
            try:
                trained += self._together(message, own, states[k : k + self._size], ends)
            except HpcflError:
                raise
            except Exception as e:
                others = ", ".join(str(task.client_id) for task in own[1:])
                stage = f"in a block with clients {others}" if others else "in a block"
                raise ClientError(own[0].client_id, own[0].round + 1, None, stage) from e
        return trained

    def _together(
        self, message: Any, tasks: Sequence[ClientTask], states: list[Any], ends: bool
    ) -> list[ClientResult]:
        """The local rounds of at most K clients."""
        device = message.x.device
        about = self._side_by_side([task.client for task in tasks])
        about = tree_map(lambda leaf: leaf.to(device), about)
        before = self._side_by_side(states)
        begin = vmap(lambda state, client: self._algorithm.begin(message, state, client))
        local = begin(before, about)
        carry: Carry = message.x.expand(self._size, -1), local
        total = torch.zeros(self._size, dtype=torch.float64, device=device)
        for step in self._filling.steps(tasks):
            carry, losses = self._play(carry, about, step)
            total += losses
        # A replayed step overwrites what it returned, and an upload may be some of that.
        carry = tree_map(torch.clone, carry)

        def finish(y: Vector, local: Any, state: Any, client: Client) -> tuple[Any, Any]:
            found: tuple[Any, Any] = self._algorithm.finish(y, local, message, state, client)
            return found

        uploads, after = vmap(finish)(*carry, before, about)
        losses = total / about.steps
        return [
            ClientResult(
                _one(uploads, k),
                # Of its own: a store that keeps one client's state must not keep all of them.
                type(after)(
                    *(
                        message.x if same else leaf[k].clone()
                        for same, leaf in zip(self._shared, after, strict=True)
                    )
                ),
                losses[k],
                carry[0][k] if ends else carry[0].new_empty(0),
            )
            for k in range(len(tasks))
        ]

    def _side_by_side(self, trees: Sequence[Any]) -> Any:
        """[K, ...] of every leaf; the first stands in where there is no client."""
        filled = [*trees, *[trees[0]] * (self._size - len(trees))]
        return type(trees[0])(*(torch.stack(leaves) for leaves in zip(*filled, strict=True)))

    def _step(self, carry: Carry, about: Client, step: Step) -> tuple[Carry, Tensor]:
        """One local step of K clients, and their losses [K]: 0 for those that stand still."""
        algorithm = self._algorithm

        def gradients(points: Tensor) -> tuple[Tensor, Tensor]:
            return self._gradients(points, step.batches)

        def one(y: Vector, local: Any, client: Client, active: Tensor) -> tuple[Carry, Tensor]:
            found: list[Tensor] = []

            def grad(point: Vector) -> Vector:
                loss, gradient = stacked(gradients, point)
                found.append(loss)
                return gradient  # type: ignore[no-any-return]

            start = algorithm.start_point(y, local, client)
            point = algorithm.gradient_point(y, start, local, client)
            d = algorithm.direction(point, local, grad, client)
            if self._weight_decay:
                d = d.add(point, alpha=self._weight_decay)
            after = algorithm.update_local(local, d, client)
            there = start - algorithm.step_scale * client.lr * d
            loss = found[0] if found else torch.zeros_like(client.lr)
            moved = tree_map(
                lambda new, old: old if new is old else torch.where(active, new, old),
                (there, after),
                (y, local),
            )
            return moved, loss.masked_fill(~active, 0.0)

        played: tuple[Carry, Tensor] = vmap(one)(*carry, about, step.active)
        return played


def _one(tree: Any, k: int) -> Any:
    """Client k's part."""
    return type(tree)(*(leaf[k] for leaf in tree))
