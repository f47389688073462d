"""Find the shapes of messages, uploads and states by a dry round without data."""

from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort
from hpcfl.algorithms.layout import stand_in
from hpcfl.algorithms.optim import Descent, Sgd
from hpcfl.clients.error_context import client_errors
from hpcfl.clients.task import ClientResult, ClientTask
from hpcfl.engine.carried import Carrying
from hpcfl.engine.hook_rules import CheckedAlgorithm, broken, known_to_server, require_form
from hpcfl.engine.trial import (
    Member,
    StandIn,
    add_to_mean,
    made_up_counts,
    task_without_data,
    train_member,
    update_server,
    with_facts,
)
from hpcfl.errors import BrokenRuleError
from hpcfl.local.joined import joined, split
from hpcfl.store.schema import Field, StateSchema
from hpcfl.types import Vector

LOSS = "train_loss"  # the field that hpcfl adds to an upload; no traffic of a real client


# Parameters up to which the dry round computes on zeros instead of meta tensors, the first of which
# takes a second and 70 MB, as torch imports its compiler.
MAX_ZEROS = 2**20
_NEED_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class RoundSchema(NamedTuple):
    """The NamedTuples of one round, made of meta tensors."""

    server: Any
    message: Any
    state: Any
    upload: Any
    local_model_field: str | None
    """The field of a client's state that is its last local model; None if it keeps none."""
    gradients: int
    """Number of gradients in a local step."""
    forwards: int
    """Number of forward passes in a local step beside them."""
    own_losses: int
    """Number of the gradients that are of another loss than the job's."""
    points: int
    """Number of points at which a client takes full gradients in a round."""

    @property
    def client_state(self) -> StateSchema:
        """The schema of a client's state."""
        fields = tuple(
            Field(name, tuple(leaf.shape), leaf.dtype, shared=leaf is self.message.x)
            for name, leaf in zip(self.state._fields, self.state, strict=True)
        )
        return StateSchema(type(self.state), fields)

    @property
    def form(self) -> tuple[Any, ...]:
        """The names, shapes and dtypes of the server's and of a client's state, to compare."""
        server = zip(self.server._fields, self.server, strict=True)
        shapes = [(name, [(x.shape, x.dtype) for x in tree_leaves(leaf)]) for name, leaf in server]
        return shapes, self.client_state.fields

    @property
    def sent_statistics(self) -> Vector | None:
        """[Q], the running statistics that the server has and sends; None if it has none."""
        return split(self.server).statistics

    @property
    def reduced(self) -> Any:
        """The tensors that are summed over the cohort: upload and training loss."""
        return self.with_loss(self.upload, torch.empty((), device="meta"))

    def carrying(self, algorithm: Carrying) -> "RoundSchema":
        """The same for the method of ``algorithm``, with what it carries beside it."""
        sent, kept = (
            None if own is None else torch.empty_like(own, device="meta")
            for own in (algorithm.of_server, algorithm.of_client)
        )
        server, message, upload = (
            joined(tree, sent) for tree in (self.server, self.message, self.upload)
        )
        # A tensor of its own: a state that is the message's x itself would count as shared.
        optimizer = algorithm.first_optimizer(torch.empty_like(self.message.x))
        state = joined(self.state, kept, optimizer)
        return self._replace(server=server, message=message, upload=upload, state=state)

    def zero_mean(self, x: Vector) -> Any:
        """The mean upload of no clients, of the dtype and on the device of ``x``."""
        return type(self.upload)(*(x.new_zeros(leaf.shape) for leaf in self.upload))

    def require_form_of(self, algorithm: Algorithm, task: ClientTask, result: ClientResult) -> None:
        """Check that a client's upload and state have the shapes and dtypes of the dry round.

        Raises:
            ClientError: they have others.
        """
        if _alike(result.upload, self.upload) and _alike(result.state, self.state):
            return
        with client_errors(task, "finish"):
            for what, found, expected in (
                ("an upload", result.upload, self.upload),
                ("a state", result.state, self.state),
            ):
                require_form(algorithm, "finish", what, found, "in the dry round", expected)

    def with_loss(self, upload: Any, loss: Tensor) -> Any:
        """An upload together with its client's training loss."""
        return _with_loss(upload._fields)(*upload, loss)

    def split_loss(self, mean: Any) -> tuple[Any, Tensor]:
        """The mean upload and the mean loss, from the mean of uploads with losses."""
        *upload, loss = mean
        return type(self.upload)(*upload), loss


def _alike(found: Any, expected: Any) -> bool:
    """Whether two NamedTuples of tensors have the same type, shapes and dtypes."""
    return type(found) is type(expected) and all(
        one.shape == other.shape and one.dtype == other.dtype
        for one, other in zip(found, expected, strict=True)
    )


class FullGradient(NamedTuple):
    """The upload before local training, of a method with full gradients."""

    grad: Vector


@cache
def _with_loss(fields: tuple[str, ...]) -> Any:
    return namedtuple("UploadWithLoss", [*fields, LOSS])


class Traffic(NamedTuple):
    """Bytes that real clients would receive and send."""

    down: int
    up: int


class _NeedsValueError(Exception):
    """A hook needs the value of a tensor, where a dry round has shapes only."""


class _NoValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that depend on the values of tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _NEED_VALUES.isdisjoint(func.tags):
            raise _NeedsValueError
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import its compiler, only to skip it


def dry_round(
    algorithm: Algorithm, size: int, dtype: torch.dtype, descent: Descent | None = None
) -> RoundSchema:
    """Do one round of ``algorithm`` on a model with ``size`` parameters, by shapes alone.

    Args:
        algorithm: whose hooks are called.
        size: P.
        dtype: of the model.
        descent: of the local step; plain SGD when None.

    Raises:
        BrokenRuleError: a hook changes a tensor in place, draws at random, or returns another
            structure than it has to.
        RuntimeError: a hook needs the value of a tensor.
        ValueError, AttributeError, ...: whatever else a faulty algorithm raises.
    """
    descent = descent or Descent(Sgd(), 0.0, stand_in(size))
    if isinstance(algorithm, Carrying):
        return dry_round(algorithm.method, size, dtype, descent).carrying(algorithm)
    if size > MAX_ZEROS:
        return _dry_round(algorithm, descent, size, dtype, "meta")
    try:
        with _NoValues():  # type: ignore[no-untyped-call]
            return _as_meta(_dry_round(algorithm, descent, size, dtype, "cpu"))
    except _NeedsValueError:  # an operation on meta tensors may not
        return _dry_round(algorithm, descent, size, dtype, "meta")


def _as_meta(schema: RoundSchema) -> RoundSchema:
    """The same with meta tensors; fields that share a tensor still share one."""
    known: dict[int, Tensor] = {}

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return known.setdefault(id(leaf), torch.empty_like(leaf, device="meta"))

    made: RoundSchema = tree_map(empty, schema)
    return made


def _dry_round(
    algorithm: Algorithm, descent: Descent, size: int, dtype: torch.dtype, device: str
) -> RoundSchema:
    """The dry round, on zeros on a device."""
    with torch.device(device):
        # Separate tensors, so that identity tells which of them a state keeps.
        x0, first, full, mean = (torch.zeros(size, dtype=dtype) for _ in range(4))
        number = torch.zeros((), dtype=torch.float64)
    algorithm = with_facts(algorithm, descent)
    checked, model = CheckedAlgorithm(algorithm), StandIn(algorithm)
    server = checked.init_server(x0, *((mean,) if checked.warm_start else ()))
    full_points = checked.full_gradient_points(server)
    grads = known_to_server(checked, [mean for _ in full_points])
    cohort = Cohort(round=0, size=1, population=1, lr=1.0, grads=grads)
    message = checked.broadcast(server, cohort)
    state = checked.init_client(first, lambda: first, *((full,) if checked.warm_start else ()))
    own = full if full_points else None
    client = Client(number, number, number, number, number, own, made_up_counts(algorithm, x0))
    member = Member(task_without_data(client, 1.0, torch.zeros_like(x0)), state)
    upload, after, _, y = train_member(checked, descent, model, message, member)
    update_server(checked, server, add_to_mean(None, upload, 1.0, x0.dtype), cohort)
    _require_names(algorithm, upload._fields)
    local_model = next((name for name in after._fields if getattr(after, name) is y), None)
    return RoundSchema(
        server,
        message,
        after,
        upload,
        local_model,
        gradients=model.gradients,
        forwards=model.forwards,
        own_losses=model.own_losses,
        points=len(full_points),
    )


def _require_names(algorithm: Algorithm, fields: Sequence[str]) -> None:
    """Check the names of an upload's fields, and those that the algorithm says something about.

    Raises:
        BrokenRuleError: a field has hpcfl's own name, or a name is that of no field.
    """
    if LOSS in fields:
        raise broken(
            algorithm, "finish", f"returns an upload with {LOSS}, which hpcfl adds; rename it"
        )
    for attribute in ("unweighted", "not_transmitted"):
        names, own = getattr(algorithm, attribute), type(algorithm).__name__
        if not isinstance(names, frozenset | set):
            raise BrokenRuleError(
                f"{own}.{attribute} is {names!r:.60}, expected a frozenset of names of fields"
            )
        unknown = sorted(set(names) - set(fields), key=str)
        if unknown:
            raise BrokenRuleError(
                f"{own}.{attribute} names {unknown[0]!r}, expected fields of the upload: "
                f"{', '.join(fields)}"
            )


def traffic(algorithm: Algorithm, schema: RoundSchema) -> Traffic:
    """Bytes down and up per client and round, as a real client would count them."""
    vector, scope = nbytes(schema.message.x), algorithm.full_gradient
    algorithm = with_facts(algorithm, Descent(Sgd(), 0.0, stand_in(schema.message.x.numel())))
    means = schema.points if scope == "server" else 0
    more = max(0, schema.points - 1)  # the message has the first of the points
    return Traffic(
        down=algorithm.down_bytes(schema.message) + vector * more,
        up=algorithm.up_bytes(schema.upload) + vector * means,
    )


def nbytes(tree: Any) -> int:
    """Bytes of all tensors in a tree."""
    return sum(leaf.numel() * leaf.dtype.itemsize for leaf in tree_leaves(tree))
