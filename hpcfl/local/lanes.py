"""Train K clients at once on a GPU, each by a CUDA graph of its own on a stream of its own: a lane.

A lane's step is the plain step of one client, with torch's own layers and without ``vmap``; the GPU
runs the lanes' kernels side by side.  All that a step needs is in memory that its graph knows: the
batches of many steps, gathered for all lanes before, and a counter of steps that the graph itself
moves on.  A step thus costs the host one launch, a lane ends with its client's steps, and nothing
is waited for until the round ends.

A client's bits depend neither on its lane nor on their number.  Equal to ``Sequential`` up to
rounding, as batches are padded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from hpcfl.algorithms.facts import Client
from hpcfl.clients.client_pool import ClientPool
from hpcfl.clients.error_context import client_errors
from hpcfl.clients.examples import to_device
from hpcfl.clients.padded_batches import PaddedBatch, PaddedBatches
from hpcfl.clients.task import NUMBERS, ClientTask, ClientTensors, numbers_of, tensors_of
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.local.cuda_graph import capture
from hpcfl.local.executor import ClientByClient, Executor
from hpcfl.local.grad import StepGrad
from hpcfl.local.gradient import default_generators, unchanged
from hpcfl.local.layers import PAD_MULTIPLE, LaneLayers, PaddedLayers
from hpcfl.local.step import Carry, local_step
from hpcfl.types import Batch, Vector

Slot = tuple[Carry, ClientTensors]  # what a client carries, and what it has but numbers
ROUND_BYTES = 1 << 30  # of batches that are gathered before their steps


class LaneGradients(BlockGradients):
    """The gradient of one client's mean loss at a flat vector [P], of a batch that may be padded.

    The batches, losses and gradients of ``BlockGradients`` without their dimension K.
    """

    def _layers(self) -> PaddedLayers:
        return LaneLayers()

    def _mapped(self, one: Callable[..., Any]) -> Callable[..., Any]:
        def mapped(views: Sequence[Tensor], *batch: Tensor) -> Any:
            with no_draws(views[0].device), unchanged(views):
                return one(views, *batch)

        return mapped

    def _of_two(self, leaf: Tensor) -> Tensor:
        return leaf


@contextmanager
def no_draws(device: torch.device) -> Iterator[None]:
    """Refuse draws of torch's generators inside: a graph would draw the same in every step.

    Not in a capture, where the state of a generator cannot be read; the calls before it show them.

    Raises:
        NotImplementedError: there were some.
    """
    if torch.cuda.is_current_stream_capturing():
        yield
        return
    generators = default_generators(device)
    before = [generator.get_state() for generator in generators]
    yield
    for generator, state in zip(generators, before, strict=True):
        if not torch.equal(generator.get_state(), state):
            raise NotImplementedError("a layer that draws from torch's generator")


class Lanes(ClientByClient):
    """Trains the clients of a rank in K lanes; see ``Executor``.

    Args:
        one: the executor for one client at a time; its algorithm, model and optimiser apply here
            too.
        gradients: of one client.
        batches: pads the clients' batches to one width, and gathers those of K clients at once.
        pair: two examples, whose order in memory the batches have in lanes.
        shared: see ``Executor``.
        most_steps: of a client in a round.
    """

    def __init__(
        self,
        one: Executor,
        gradients: LaneGradients,
        batches: PaddedBatches,
        pair: Batch,
        shared: Sequence[bool],
        most_steps: int,
    ) -> None:
        super().__init__(one.algorithm, one.gradient, one.descent, batches.size, shared)
        self._gradients, self._batches = gradients, batches
        self._orders = (*map(_order, pair), [0])
        self._most_steps = most_steps
        self._memory: _Memory | None = None

    def _take_steps(
        self, tasks: Sequence[ClientTask], carries: list[Carry]
    ) -> tuple[list[Carry], Sequence[Tensor]]:
        with client_errors(tasks[0], "step in lanes"):
            return self._run(tasks, carries)

    def _run(
        self, tasks: Sequence[ClientTask], carries: list[Carry]
    ) -> tuple[list[Carry], Sequence[Tensor]]:
        batches, memory = self._batches.steps(tasks), self._memory
        first, lr_of_step = next(batches), tasks[0].lr_of_step  # the same of all of them
        slots = [
            (carry, tensors_of(task.client)) for task, carry in zip(tasks, carries, strict=True)
        ]
        if memory is None:
            by_step = lr_of_step is not None
            memory = _Memory(first, self._orders, slots[0], self._most_steps, by_step=by_step)
            memory.capture(self._plain_step if self.plain_sgd else self._step)
            self._memory = memory
        numbers = numbers_of([task.client for task in tasks], first.seeds.device)
        memory.begin(slots, numbers, first.seeds)
        ahead, done, most = chain([first], batches), 0, max(task.steps for task in tasks)
        while done < most:
            count = memory.fill(ahead, map(lr_of_step, range(done, most)) if lr_of_step else ())
            for s in range(done, done + count):
                for lane, task in zip(memory.lanes, tasks, strict=False):
                    if s < task.steps:
                        lane.replay()
            memory.join()
            done += count
        totals = memory.totals[: len(tasks)].clone()
        losses = [total / task.client.steps for total, task in zip(totals, tasks, strict=True)]
        return [memory.carry(k) for k in range(len(tasks))], losses

    def _step(self, memory: "_Memory", k: int) -> None:
        """One local step of the client in lane k, in the lane's memory."""
        carry, client = memory.client(k)
        grad = StepGrad(self._gradients.on(memory.batch(k), _call), carry.statistics)
        memory.set(k, local_step(self.algorithm, self.descent, carry, grad, client))
        if grad.loss is not None:
            memory.totals[k].add_(grad.loss)
        memory.count(k)

    def _plain_step(self, memory: "_Memory", k: int) -> None:
        """The same of plain SGD: the gradients are not joined to a vector, and y not copied."""
        carry, client = memory.client(k)
        loss, parameters, grads = self._gradients.of_parameters(carry.y, memory.batch(k))
        with torch.no_grad():
            along = grads
            if self.descent.decay:
                along = torch._foreach_add(grads, parameters, alpha=self.descent.decay)
            steps = torch._foreach_mul(along, client.lr.to(carry.y.dtype))
            torch._foreach_sub_(parameters, steps)
        memory.totals[k].add_(loss)
        memory.count(k)


def lane_executor(
    one: Executor, clients: ClientPool, x: Vector, *, shared: Sequence[bool], size: int
) -> Lanes:
    """The executor of ``size`` lanes, for a GPU.

    Args:
        one: whose algorithm, model, loss and precision it takes.
        clients: give the width of the widest batch, and an example.
        x: [P], any point: the model is tried there.
        shared: see ``Executor``.
        size: K.

    Raises:
        Exception: whatever the model raises where it cannot be computed for padded batches.
    """
    gradient = one.gradient
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
    return Lanes(one, gradients, batches, pair, shared, most)


class _Memory:
    """What the graphs of K lanes read and write.

    Args:
        batch: the first one, for the shapes.
        orders: of inputs, labels and counts [B, ...]: their dimensions from the longest stride to
            the shortest, which a layer's kernels, and so the bits, may depend on.
        slot: what any client carries and has but its numbers, for the shapes.
        most_steps: of a client in a round.
        by_step: whether every local step has a learning rate of its own.
    """

    def __init__(
        self,
        batch: PaddedBatch,
        orders: Sequence[Sequence[int]],
        slot: Slot,
        most_steps: int,
        *,
        by_step: bool,
    ) -> None:
        inputs, labels, counts, seeds = batch
        size = sum(leaf.nbytes for leaf in (inputs, labels, counts))
        self.capacity = max(1, min(most_steps, ROUND_BYTES // size))
        """Steps whose batches it has room for."""
        self._orders = [[0, *(1 + d for d in order)] for order in orders]  # with K in front
        self._batches = [
            leaf.new_zeros(self.capacity, *(leaf.shape[d] for d in order))
            for leaf, order in zip((inputs, labels, counts), self._orders, strict=True)
        ]
        self._seeds = torch.zeros_like(seeds)
        self.at = torch.zeros_like(seeds)
        """[K], the number of each lane's next step among those whose batches are here."""
        self.taken = torch.zeros_like(seeds)
        """[K], the local steps that each lane's client has taken."""
        self.totals = torch.zeros(len(seeds), dtype=torch.float64, device=seeds.device)
        """[K], the sums of the losses of these steps."""
        self._rates = self.totals.new_zeros(self.capacity) if by_step else None
        rows = tree_map(lambda leaf: _rows(leaf, len(seeds), seeds.device), slot)
        self._slots: list[Slot] = [
            tree_map(lambda leaf, k=k: leaf[k], rows) for k in range(len(seeds))
        ]
        numbers = self.totals.new_zeros(len(NUMBERS))
        self._numbers = _rows(numbers, len(seeds), seeds.device)
        self.lanes: list[_Lane] = []

    def capture(self, step: Callable[["_Memory", int], None]) -> None:
        """Capture the step of every lane; what is in the memory is lost."""
        for k in range(len(self._slots)):
            self.lanes.append(_Lane(partial(step, self, k), self.at.zero_))

    def begin(self, slots: Sequence[Slot], numbers: Tensor, seeds: Tensor) -> None:
        """Set the clients of the lanes: what they carry and have, and their ``NUMBERS`` [5, n]."""
        for own, given in zip(self._slots, slots, strict=False):
            for leaf, value in zip(tree_leaves(own), tree_leaves(given), strict=True):
                leaf.copy_(value)
        self._numbers[: len(slots)].copy_(numbers.T)
        self._seeds.copy_(seeds)
        self.taken.zero_()
        self.totals.zero_()

    def fill(self, batches: Iterator[PaddedBatch], rates: Iterable[float]) -> int:
        """Set the batches of the next steps; the lanes begin when they are there.

        Args:
            batches: of all steps that are left.
            rates: their learning rates; empty where all steps of a round have one.

        Returns:
            The number of steps: as many as there is room for, or are left.
        """
        count = 0
        for batch in islice(batches, self.capacity):
            for own, given, order in zip(self._batches, batch[:3], self._orders, strict=True):
                own[count].copy_(given.permute(order))
            count += 1
        if self._rates is not None:
            given = torch.tensor([*islice(rates, count)], dtype=torch.float64)
            self._rates[:count].copy_(to_device(given, self._rates.device))
        self.at.zero_()
        main = torch.cuda.current_stream()
        for lane in self.lanes:
            lane.stream.wait_stream(main)
        return count

    def batch(self, k: int) -> PaddedBatch:
        """Within the step of lane k: its next batch."""
        at = self.at[k : k + 1]
        inputs, labels, counts = (
            own[:, k].index_select(0, at)[0].permute(_without_clients(order))
            for own, order in zip(self._batches, self._orders, strict=True)
        )
        return PaddedBatch(inputs, labels, counts, self._seeds[k] + self.taken[k])

    def client(self, k: int) -> tuple[Carry, Client]:
        """Within the step of lane k: what its client carries, and the ``Client`` for the hooks."""
        carry, tensors = self._slots[k]
        numbers = dict(zip(NUMBERS, self._numbers[k], strict=True))
        numbers["step"] = self.taken[k].to(torch.float64)
        if self._rates is not None:
            numbers["lr"] = self._rates.index_select(0, self.at[k : k + 1])[0]
        return carry, Client(**numbers, **tensors)

    def count(self, k: int) -> None:
        """Within the step of lane k: it is taken."""
        self.at[k].add_(1)
        self.taken[k].add_(1)

    def set(self, k: int, carry: Carry) -> None:
        """Within the step of lane k: what its client carries to the next step."""
        old, new = tree_leaves(self._slots[k][0]), tree_leaves(carry)
        changed = [
            (before, after) for before, after in zip(old, new, strict=True) if after is not before
        ]
        # A hook may have kept y in a local quantity, and y is overwritten.
        own = {leaf.untyped_storage().data_ptr() for leaf in old}
        copies = [
            after.clone() if after.untyped_storage().data_ptr() in own else after
            for _, after in changed
        ]
        for (before, _), after in zip(changed, copies, strict=True):
            before.copy_(after)

    def join(self) -> None:
        """Let the main stream wait for the lanes."""
        main = torch.cuda.current_stream()
        for lane in self.lanes:
            main.wait_stream(lane.stream)

    def carry(self, k: int) -> Carry:
        """A copy, which the next client of the lane does not overwrite."""
        copy: Carry = tree_map(torch.clone, self._slots[k][0])
        return copy


class _Lane:
    """A graph, and the stream that it is captured and replayed on."""

    def __init__(self, step: Callable[[], None], rewind: Callable[[], object]) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

        def rewound() -> None:
            step()
            if not torch.cuda.is_current_stream_capturing():  # the graph itself walks on
                rewind()

        self._graph = capture(rewound, (), self.stream).graph

    def replay(self) -> None:
        """Queue a step."""
        with torch.cuda.stream(self.stream):
            self._graph.replay()


def _call(function: Callable[..., Any], *tensors: Tensor) -> Any:
    return function(*tensors)


def _order(leaf: Tensor) -> list[int]:
    """The dimensions of [B, ...] from the longest stride to the shortest, B first."""
    return [0, *sorted(range(1, leaf.dim()), key=leaf.stride, reverse=True)]


def _without_clients(order: Sequence[int]) -> list[int]:
    """Undoes ``order`` on a tensor without the dimension K."""
    return [order.index(d) - 1 for d in range(1, len(order))]


def _rows(leaf: Tensor, size: int, device: torch.device) -> Tensor:
    """[K, ...] in rows of the same alignment, as kernels may depend on it."""
    width = leaf.numel()
    padded = PAD_MULTIPLE * max(1, -(-width // PAD_MULTIPLE))
    memory = torch.zeros(size, padded, dtype=leaf.dtype, device=device)
    return memory[:, :width].view(size, *leaf.shape)
