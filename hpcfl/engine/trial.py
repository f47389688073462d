"""Play a client's round, and the server's, of an algorithm whose hooks are checked.

The round is that of ``Sequential``, which trains in a run too.  Where there is no model, a stand-in
gives the gradients.  Of a result the digest alone is kept: a model may fill most of the memory.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, Forward, LossTerms
from hpcfl.algorithms.optim import Descent
from hpcfl.clients.draws import drawn
from hpcfl.clients.task import ClientResult, ClientTask
from hpcfl.engine.hook_rules import (
    CheckedAlgorithm,
    broken,
    form_of,
    known_to_server,
    require_same_form,
)
from hpcfl.errors import ClientError
from hpcfl.local.gradient import check_terms
from hpcfl.local.sequential import Sequential
from hpcfl.types import Batch, Vector

SMALL = 1000  # parameters of the model that stands in where there is no data
CLASSES = 3  # of the labels there
_PIECE = 1 << 20  # bytes


class Member(NamedTuple):
    """A client of a trial, and its state before the round."""

    task: ClientTask
    state: Any


def with_facts(algorithm: Algorithm, descent: Descent) -> Algorithm:
    """The algorithm, with facts for a trial where it has none, or none of a model."""
    facts: Facts = getattr(algorithm, "facts", Facts(weight_decay=descent.decay))
    if facts.layout is not None:
        return algorithm
    classes = facts.classes or CLASSES
    return algorithm.with_facts(facts._replace(layout=descent.layout, classes=classes))


def made_up_counts(algorithm: Algorithm, x0: Vector) -> Vector | None:
    """The label counts of a client of a trial: one example of each class; None if not needed."""
    if not algorithm.needs_label_counts:
        return None
    return x0.new_ones(algorithm.facts.classes or CLASSES)


class StandIn:
    """Stands in for ``Gradient`` where there is no model, with two examples of made-up outputs.

    The gradient at a point is the sum of the point and the inputs [P] of the batch.

    Args:
        algorithm: whose facts give the numbers of classes and features.
    """

    clip = statistics = None

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.gradients = self.forwards = self.own_losses = 0
        """How often each was asked for."""

    def on(self, batch: Batch, seed: int) -> "_StandInBatch":
        """See ``Gradient.on``."""
        return _StandInBatch(self, batch.inputs)

    def view(self, x: Vector) -> None:
        """See ``Gradient.view``: there are no parameters."""

    def forward(self, point: Vector) -> Forward:
        """Two examples; the same at every point."""
        classes = self._algorithm.facts.classes or CLASSES
        outputs, numbers = point.new_zeros(2, classes), torch.arange(2, device=point.device)
        mask = torch.arange(classes, device=point.device) == numbers.unsqueeze(1)
        width = self._algorithm.layout.features  # here, as the layout may have to load the data
        features = point.new_zeros(2, width) if width else point.new_zeros(0)
        return Forward(outputs, numbers, mask, outputs[:, 0], features, present=point.new_ones(2))


class _StandInBatch:
    """See ``BatchFunction``; counts its calls."""

    def __init__(self, model: StandIn, inputs: Vector) -> None:
        self._model, self._inputs = model, inputs

    def gradient(
        self, point: Vector, terms: LossTerms | None, statistics: Vector | None
    ) -> tuple[Tensor, Vector, Vector | None]:
        if terms is not None:
            forward = self._model.forward(point)
            check_terms(terms(forward), forward.losses)
            self._model.own_losses += 1
        self._model.gradients += 1
        return point.new_zeros(()), point + self._inputs, statistics

    def forward(self, point: Vector) -> Forward:
        self._model.forwards += 1
        return self._model.forward(point)


def task_without_data(client: Client, lr: float, inputs: Vector) -> ClientTask:
    """The task of one local step on the batch of a stand-in."""
    batches = iter([Batch(inputs, inputs)])
    return ClientTask(0, 0, 0, client, 1, lr, batches, iter(()), 0, iter(()))


def train_member(
    algorithm: CheckedAlgorithm, descent: Descent, gradient: Any, message: Any, member: Member
) -> ClientResult:
    """One client's round, with its last local model.

    Args:
        algorithm: whose hooks are called.
        descent: of the local steps.
        gradient: a ``Gradient``, or what has its ``clip``, ``on`` and ``view``.
        message: to the client.
        member: the client.

    Raises:
        BrokenRuleError: a hook breaks a rule.
        Exception: whatever else a faulty hook raises.
    """
    executor, (task, state) = Sequential(algorithm, gradient, descent), member
    try:
        (result,) = executor.train(message, [task], [state], local_models=True)
    except ClientError as e:  # a trial names the class of the job, and no client or round
        raised = e.__cause__ or e
    else:
        return result
    raise raised


def update_server(algorithm: CheckedAlgorithm, server: Any, mean: Any, cohort: Cohort) -> Any:
    """The server after a round with this mean of the uploads."""
    draws = drawn(algorithm.server_draws, server.x, 0, 0)
    after = algorithm.update(server, mean, cohort._replace(draws=draws))
    algorithm.round_numbers(after)
    return after


def require_repeatable(
    algorithm: CheckedAlgorithm,
    descent: Descent,
    gradient: Any,
    x0: Vector,
    warm: Sequence[Vector],
    members: Sequence[Callable[[], Member]],
    cohort: Cohort,
) -> None:
    """Do a round twice, the clients in another order, and compare everything bit for bit.

    Args:
        algorithm: whose hooks are called.
        descent: of the local steps.
        gradient: see ``train_member``.
        x0: the initial model.
        warm: the mean of all full gradients there; none without a warm start.
        members: each makes a client, with the same values at every call.
        cohort: the round's.

    Raises:
        BrokenRuleError: a hook returns other values the second time, or another structure for one
            client than for the other, or breaks another rule.
        Exception: whatever else a faulty hook raises.
    """
    server = algorithm.init_server(x0, *warm)
    _require_same(algorithm, "init_server", server, algorithm.init_server(x0, *warm))
    message = _broadcast(algorithm, server, cohort)

    def train(made: Callable[[], Member]) -> tuple[Any, list[int]]:
        """A client's upload, and the digest of all that it made."""
        result = train_member(algorithm, descent, gradient, message, made())
        return result.upload, digest((result.upload, result.state, result.local_model))

    once: list[list[int]] = []
    form = ""
    for made in members:
        upload, found = train(made)
        own = form_of(algorithm.method, "finish", upload)
        form = form or own
        require_same_form(algorithm.method, "finish", "an upload", own, "for another client", form)
        once.append(found)
        del upload
    mean, share = None, 1 / len(members)
    for made, first in zip(reversed(members), reversed(once), strict=True):
        upload, found = train(made)
        _require_equal(algorithm, "finish", found, first)
        mean = add_to_mean(mean, upload, share, server.x.dtype)
        del upload
    before = digest(update_server(algorithm, server, mean, cohort))
    after = update_server(algorithm, server, mean, cohort)
    _require_equal(algorithm, "update", digest(after), before)
    _require_same(algorithm, "broadcast", message, algorithm.broadcast(server, cohort))
    # Once more after a round, in which the models of the server have become different ones.
    _broadcast(algorithm, after, cohort)


def _broadcast(algorithm: CheckedAlgorithm, server: Any, cohort: Cohort) -> Any:
    """The message; the first of the points, if there are any, is the model that clients receive."""
    points = algorithm.full_gradient_points(server)
    message = algorithm.broadcast(server, cohort)
    if points and not torch.equal(points[0], message.x):
        raise broken(
            algorithm.method,
            "full_gradient_points",
            "returns another first point than the x of the message, at which the clients' "
            "full_grad is taken; let it return the x of broadcast first",
        )
    return message


def add_to_mean(mean: Any, upload: Any, share: float, dtype: torch.dtype) -> Any:
    """The mean of uploads so far, with one more, of this share of them all.

    In ``dtype``, that of the model, as the engine's means, whatever the dtypes of the uploads.
    """
    if mean is None:
        return tree_map(lambda leaf: leaf.to(dtype) * share, upload)
    return tree_map(lambda total, leaf: total.add_(leaf.to(dtype), alpha=share), mean, upload)


def require_repeatable_without_data(method: Algorithm, descent: Descent) -> None:
    """Do ``require_repeatable`` on a small made-up model, where there are no data.

    Args:
        method: whose hooks are called.
        descent: of the local steps, of a model of ``SMALL`` parameters.

    Raises:
        BrokenRuleError, Exception: see ``require_repeatable``.
    """
    generator = torch.Generator().manual_seed(0)
    x0, *noise = (torch.randn(SMALL, generator=generator) for _ in range(3))
    algorithm = CheckedAlgorithm(with_facts(method, descent))
    number = torch.ones((), dtype=torch.float64)
    mean = torch.stack(noise).mean(0)
    warm = (mean,) if algorithm.warm_start else ()
    points = algorithm.full_gradient_points(algorithm.init_server(x0, *warm))

    def made(noise: Vector) -> Member:
        state = algorithm.init_client(x0, x0.clone, *((noise,) if warm else ()))
        numbers = 0 * number, 0 * number, number, 0.1 * number, number
        client = Client(*numbers, noise if points else None, made_up_counts(algorithm, x0))
        return Member(task_without_data(client, 0.1, noise), state)

    members = [lambda own=own: made(own) for own in noise]
    grads = known_to_server(algorithm, [point + mean for point in points])
    cohort = Cohort(0, 2, 4, 0.1, grads)
    require_repeatable(algorithm, descent, StandIn(algorithm), x0, warm, members, cohort)


def digest(tree: Any) -> list[int]:
    """A checksum of the bits of every tensor of a tree, among which NaN equals itself."""
    found = []
    for leaf in tree_leaves(tree):
        crc = 0
        if isinstance(leaf, Tensor):
            bits = leaf.detach().contiguous().reshape(-1).view(torch.uint8)
            for piece in torch.split(bits, _PIECE):
                crc = crc32(piece.cpu().numpy().data, crc)
        found.append(crc)
    return found


def _require_same(algorithm: CheckedAlgorithm, hook: str, first: Any, second: Any) -> None:
    """Check that two results of the same arguments are equal, bit for bit."""
    _require_equal(algorithm, hook, digest(first), digest(second))


def _require_equal(
    algorithm: CheckedAlgorithm, hook: str, first: Sequence[int], second: Sequence[int]
) -> None:
    """The same, of the digests of both."""
    if first != second:
        raise broken(
            algorithm.method,
            hook,
            "returned other values when the same clients were run again, in another order: a hook "
            "keeps something between calls, in a module or an attribute, or draws at random; keep "
            "it in the server or in the client's state",
        )
