"""Find the shapes that an algorithm sends and keeps, by a dry round without data."""

from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hpcfl.algorithms.base import Algorithm, Client, Cohort
from hpcfl.engine.hook_rules import Member, call, play_client, play_update
from hpcfl.store.schema import Field, StateSchema
from hpcfl.types import Vector

LOSS = "train_loss"  # the field of what is summed that is ours, no traffic of a real client


# Parameters up to which the dry round plays on zeros: the first operation on a meta tensor costs a
# second and 70 MB, because it imports torch's compiler.
PLAYED = 2**20
_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Schema(NamedTuple):
    """The NamedTuples of one round, made of meta tensors."""

    server: Any
    message: Any
    state: Any
    upload: Any
    local_model_field: str | None
    """The field of a client's state that is its last local model, found by identity."""
    gradients: int
    """Gradients of its batch that a local step takes."""

    @property
    def client_state(self) -> StateSchema:
        """The schema of the store of client states."""
        fields = tuple(
            Field(name, tuple(leaf.shape), leaf.dtype, shared=leaf is self.message.x)
            for name, leaf in zip(self.state._fields, self.state, strict=True)
        )
        return StateSchema(type(self.state), fields)

    @property
    def reduced(self) -> Any:
        """What is summed over the cohort: the upload, and the loss its client trained at."""
        return self.send(self.upload, torch.empty((), device="meta"))

    def send(self, upload: Any, loss: Tensor) -> Any:
        """An upload together with its client's training loss."""
        return _sent(upload._fields)(*upload, loss)

    def receive(self, mean: Any) -> tuple[Any, Tensor]:
        """The mean upload and the mean loss, from the mean of what was sent."""
        *upload, loss = mean
        return type(self.upload)(*upload), loss


class FullGradient(NamedTuple):
    """What a client sends before local training, where the algorithm asks for it."""

    grad: Vector


@cache
def _sent(fields: tuple[str, ...]) -> Any:
    return namedtuple("Sent", [*fields, LOSS])


class Traffic(NamedTuple):
    """Bytes that a real client would receive and send in one round, by the dry round's shapes.

    The plan: what is logged is counted anew in every round, at the broadcast and the reduction.
    """

    down: int
    up: int


class _AsksForValueError(Exception):
    """A dry round needs more than shapes."""


class _Blind(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what depends on the values of tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _VALUES.isdisjoint(func.tags):
            raise _AsksForValueError
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip the compiler, torch would import it


def dry_round(algorithm: Algorithm, size: int, dtype: torch.dtype) -> Schema:
    """Play one round of ``algorithm`` on a model with ``size`` parameters, by shapes alone.

    Raises:
        BrokenRuleError: a hook changes a tensor in place, draws at random, or returns another
            structure than it has to.
        RuntimeError: a hook asks for the value of a meta tensor.
        ValueError, AttributeError, ...: whatever a faulty algorithm raises.
    """
    if size > PLAYED:
        return _play(algorithm, size, dtype, "meta")
    try:
        with _Blind():  # type: ignore[no-untyped-call]
            return _emptied(_play(algorithm, size, dtype, "cpu"))
    except _AsksForValueError:  # unless the tensor is meta, perhaps
        return _play(algorithm, size, dtype, "meta")


def _emptied(played: Schema) -> Schema:
    """The same of meta tensors; what was one tensor stays one."""
    known: dict[int, Tensor] = {}

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return known.setdefault(id(leaf), torch.empty_like(leaf, device="meta"))

    made: Schema = tree_map(empty, played)
    return made


def _play(algorithm: Algorithm, size: int, dtype: torch.dtype, device: str) -> Schema:
    """The dry round, on zeros of a device."""
    with torch.device(device):
        # Separate tensors: what `finish` keeps of the message is known by identity.
        x0, first, full, mean = (torch.zeros(size, dtype=dtype) for _ in range(4))
        number = torch.zeros((), dtype=torch.float64)
        whole = torch.zeros((), dtype=torch.int64)
    server = call(algorithm, "init_server", x0)
    message = call(algorithm, "broadcast", server)
    state = call(algorithm, "init_client", first, lambda: first)
    client = Client(whole, number, number, number, full_grad=full, cohort_grad=mean)
    asked: list[Tensor] = []

    def grad(y: Vector) -> Vector:
        asked.append(y)
        return y.clone()

    upload, after, y = play_client(algorithm, message, Member(state, client, grad))
    cohort = Cohort(round=0, size=1, population=1, lr=1.0, grad=mean)
    play_update(algorithm, server, [upload], cohort)
    own = next((name for name in after._fields if getattr(after, name) is y), None)
    return Schema(server, message, after, upload, own, len(asked))


def traffic(algorithm: Algorithm, schema: Schema) -> Traffic:
    """Bytes down and up per client and round, as a real client would count them."""
    vector = nbytes(schema.message.x)
    surveyed = algorithm.full_gradient == "cohort"
    sent = [
        leaf
        for name, leaf in zip(schema.upload._fields, schema.upload, strict=True)
        if name not in algorithm.not_transmitted
    ]
    return Traffic(
        down=nbytes(schema.message) + vector * surveyed, up=nbytes(sent) + vector * surveyed
    )


def nbytes(tree: Any) -> int:
    """Bytes of all tensors of a tree."""
    return sum(leaf.numel() * leaf.dtype.itemsize for leaf in tree_leaves(tree))
