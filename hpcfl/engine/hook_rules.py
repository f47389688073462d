"""Call the hooks of an algorithm one by one, and check the rules of each.

A hook changes nothing in place, draws from no global generator, returns the same structure at every
call, and the same values for the same arguments, whichever client came before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError
from inspect import getattr_static, signature
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import (
    Client,
    Cohort,
    Facts,
    Forward,
    FullGradientScope,
    Grad,
    LossTerms,
    RandomInit,
)
from hpcfl.engine.statistics import WithStatistics
from hpcfl.errors import BrokenRuleError, defined
from hpcfl.local.draws import drawn
from hpcfl.local.gradient import check_terms
from hpcfl.local.step import Carry, local_step
from hpcfl.optim import Descent
from hpcfl.store.schema import STORED
from hpcfl.types import Vector
from hpcfl.user_code.generators import generators

SMALL = 1000  # parameters of the model that stands in where there is no data
CLASSES = 3  # of the labels there
_WITH_GRADIENT = ("init_server", "init_client")  # where there is a warm start
_FROM_POINTS = ("the start of the step", "the point of its gradient")
_FROM_DIRECTION = ("the direction", "the local quantities")
_FROM_FINISH = ("the upload", "the client's next state")


def hook_advice(error: Exception) -> str:
    """What to do about an error of a hook, for the end of its line."""
    if isinstance(error, BrokenRuleError):
        return ""
    if isinstance(error, FrozenInstanceError):  # the hook sets an attribute of the algorithm
        return (
            "; an algorithm's object keeps nothing itself: put it into the server's NamedTuple, or "
            "into the client's state"
        )
    if "meta tensor" in str(error):
        return (
            "; the dry round has tensors without values: take no number and no if of one, such as "
            "client.round, but torch.where or clamp"
        )
    return "; hooks take and return what hpcfl/algorithms/base.py says"


class ClientHookResults(NamedTuple):
    """The results of one client's round."""

    upload: Any
    state: Any
    y: Vector
    """The client's last local model."""


class Member(NamedTuple):
    """The inputs of one client's round."""

    state: Any
    client: Client
    grad: Grad


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


class TrialGrad:
    """Stands in for ``Grad`` where there is no model: two examples of made-up outputs.

    Args:
        gradient: at a point.
        algorithm: whose facts give the numbers of classes and features.
    """

    def __init__(self, gradient: Callable[[Vector], Vector], algorithm: Algorithm) -> None:
        self._gradient, self._algorithm = gradient, algorithm
        self.forwards = 0
        """How often ``forward`` was called."""

    def __call__(self, point: Vector, loss: LossTerms | None = None) -> Vector:
        """The gradient at ``point``; the terms of a loss are made, and their shape is checked."""
        if loss is not None:
            forward = self._made_up(point)
            check_terms(loss(forward), forward.losses)
        return self._gradient(point)

    def forward(self, point: Vector) -> Forward:
        """Two examples; the same at every point."""
        self.forwards += 1
        return self._made_up(point)

    def _made_up(self, point: Vector) -> Forward:
        classes = self._algorithm.facts.classes or CLASSES
        outputs, numbers = point.new_zeros(2, classes), torch.arange(2, device=point.device)
        mask = torch.arange(classes, device=point.device) == numbers.unsqueeze(1)
        width = self._algorithm.layout.features  # here, as the layout may have to load the data
        features = point.new_zeros(2, width) if width else point.new_zeros(0)
        return Forward(outputs, numbers, mask, outputs[:, 0], features, present=point.new_ones(2))


def call(algorithm: Algorithm, hook: str, *args: Any) -> Any:
    """Call a hook, and return its result.

    Raises:
        BrokenRuleError: the hook takes other arguments than it is called with, changes one of them
            in place, or draws from a global generator.
    """
    _require_signature(algorithm, hook)
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    versions, before = [tensor._version for tensor in tensors], generators()
    made = getattr(algorithm, hook)(*args)
    if [tensor._version for tensor in tensors] != versions:
        raise broken(
            algorithm,
            hook,
            "changes one of its arguments in place; make a new tensor (x = x + 1, not x += 1)",
        )
    if drew := generators().changed(before):
        raise broken(
            algorithm,
            hook,
            f"draws from {' and '.join(drew)}, so that its results depend on the number of ranks; "
            "let it draw nothing",
        )
    return made


def _require_signature(algorithm: Algorithm, hook: str) -> None:
    """Refuse a hook that cannot be called with the arguments of the contract."""
    own = getattr(algorithm, hook)
    if not callable(own):
        return
    expected = list(signature(getattr(Algorithm, hook)).parameters)[1:]  # without self
    gradient = ["grad=None"] if algorithm.warm_start and hook in _WITH_GRADIENT else []
    try:
        found = signature(own, follow_wrapped=False)
    except ValueError:  # a function of C may have none
        return
    try:
        found.bind(*expected)
        found.bind(*expected, *gradient)
    except TypeError as e:
        takes, known = ", ".join(map(str, found.parameters.values())), [*expected, *gradient]
        raise broken(algorithm, hook, f"takes ({takes}), expected ({', '.join(known)})") from e


def broken(algorithm: Algorithm, hook: str, rule: str) -> BrokenRuleError:
    """The error of a hook that breaks a rule."""
    cls = type(algorithm.method if isinstance(algorithm, WithStatistics) else algorithm)
    return BrokenRuleError(f"{cls.__name__}.{hook} {rule}", defined(getattr(cls, hook)))


def first_server(algorithm: Algorithm, x0: Vector, mean: Vector | None) -> Any:
    """The server before round 0; ``mean`` is that of all full gradients at ``x0``.

    Raises:
        BrokenRuleError: a hook breaks a rule.
    """
    return _first(algorithm, "init_server", "a server", (x0,), mean)


def first_state(
    algorithm: Algorithm, x0: Vector, random_init: RandomInit, grad: Vector | None
) -> Any:
    """The state of a client before round 0; ``grad`` is its full gradient at ``x0``.

    Raises:
        BrokenRuleError: the hook breaks a rule.
    """
    return _first(algorithm, "init_client", "a state", (x0, random_init), grad)


def _first(
    algorithm: Algorithm, hook: str, what: str, args: Sequence[Any], grad: Vector | None
) -> Any:
    """What a hook returns before round 0: with the gradient, if there is a warm start."""
    first = call(algorithm, hook, *args)
    if not algorithm.warm_start:
        return first
    warm = call(algorithm, hook, *args, grad)
    require_form(algorithm, hook, what, warm, "without a gradient", first)
    return warm


def full_gradient_points(algorithm: Algorithm, server: Any) -> tuple[Vector, ...]:
    """The points of the round's full gradients; none where the algorithm takes none.

    Raises:
        BrokenRuleError: the hook returns something else than vectors like the model.
    """
    if algorithm.full_gradient not in get_args(FullGradientScope):
        known = ", ".join(get_args(FullGradientScope))
        said = f"is {algorithm.full_gradient!r:.60}, expected one of {known}"
        scope: Any = getattr_static(type(algorithm), "full_gradient")
        location = defined(scope.fget) if isinstance(scope, property) and scope.fget else ""
        raise BrokenRuleError(f"{type(algorithm).__name__}.full_gradient {said}", location)
    if algorithm.full_gradient == "none":
        return ()
    hook = "full_gradient_points"
    points = call(algorithm, hook, server)
    if not isinstance(points, tuple) or not points:
        raise broken(algorithm, hook, f"returns {points!r:.60}; expected a tuple of vectors")
    for point in points:
        _require_like(algorithm, hook, point, server.x)
    return points


def known_to_server(algorithm: Algorithm, means: Sequence[Vector]) -> tuple[Vector, ...]:
    """Of the full gradients' means, those that ``Cohort.grads`` has: all or none."""
    return tuple(means) if algorithm.full_gradient == "server" else ()


class CheckedAlgorithm:
    """The hooks of a client's round, each of which checks its rules as it is called.

    Args:
        algorithm: whose hooks are called.
        x: [P], the model that the client received.

    Raises:
        BrokenRuleError: by every hook that breaks a rule.
        Exception: whatever else a faulty hook raises.
    """

    def __init__(self, algorithm: Algorithm, x: Vector) -> None:
        self._algorithm, self._x = algorithm, x

    def begin(self, message: Any, state: Any, client: Client) -> Any:
        """Return what the algorithm's hook returns, as all hooks here."""
        local = call(self._algorithm, "begin", message, state, client)
        _form(self._algorithm, "begin", local)
        return local

    def first_point(self, message: Any, state: Any, client: Client) -> Vector:
        """A vector like the model."""
        return self._vector("first_point", message, state, client)

    def points(self, y: Vector, local: Any, client: Client) -> tuple[Vector, Vector]:
        """Two vectors like the model."""
        pair = self._pair("points", _FROM_POINTS, y, local, client)
        for point in pair:
            _require_like(self._algorithm, "points", point, self._x)
        return pair

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        """A vector like the model, and local quantities of the form that ``begin`` returned."""
        hook = "direction"
        d, after = self._pair(hook, _FROM_DIRECTION, point, local, grad, client)
        _require_like(self._algorithm, hook, d, self._x)
        require_form(self._algorithm, hook, "local quantities", after, "begin", local)
        return d, after

    def step_scale(self, y: Vector, local: Any, client: Client) -> float | Tensor:
        """A number, or a vector like the model."""
        scale: Any = call(self._algorithm, "step_scale", y, local, client)
        if not isinstance(scale, float | int) and getattr(scale, "shape", None) != ():
            _require_like(self._algorithm, "step_scale", scale, self._x)
        return scale  # type: ignore[no-any-return]

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        """An upload that has a mean, and a state of the form that ``init_client`` returned."""
        algorithm = self._algorithm
        upload, kept = self._pair("finish", _FROM_FINISH, y, local, message, state, client)
        _require_tensors(algorithm, "finish", "an upload", upload)
        for name, leaf in zip(upload._fields, upload, strict=True):
            if leaf.dtype == torch.bool or leaf.is_complex():
                raise broken(
                    algorithm,
                    "finish",
                    f"returns an upload whose {name} is {leaf.dtype}, which has no mean; cast it",
                )
        _require_tensors(algorithm, "init_client", "a state", state)
        for name, leaf in zip(state._fields, state, strict=True):
            if leaf.dtype not in STORED:
                known = ", ".join(map(str, STORED))
                raise broken(
                    algorithm,
                    "init_client",
                    f"returns a state whose {name} is {leaf.dtype}; expected {known}",
                )
        require_form(algorithm, "finish", "a state", kept, "init_client", state)
        if algorithm.has_personal_models:
            self._vector("personal_model", self._x, kept)
        return upload, kept

    def _pair(self, hook: str, expected: Sequence[str], *args: Any) -> tuple[Any, Any]:
        """The two things that a hook returns."""
        returned = call(self._algorithm, hook, *args)
        if type(returned) is not tuple or len(returned) != len(expected):
            kind = type(returned).__name__
            found = f"a tuple of {len(returned)}" if kind == "tuple" else kind
            raise broken(
                self._algorithm,
                hook,
                f"returns {found}; expected a plain tuple of {' and '.join(expected)}",
            )
        return returned

    def _vector(self, hook: str, *args: Any) -> Vector:
        made: Vector = call(self._algorithm, hook, *args)
        _require_like(self._algorithm, hook, made, self._x)
        return made


def call_client_hooks(
    algorithm: Algorithm, descent: Descent, message: Any, member: Member
) -> ClientHookResults:
    """One client's round, of one local step with the job's weight decay and momentum.

    Raises:
        BrokenRuleError: a hook breaks a rule.
        Exception: whatever else a faulty hook raises.
    """
    if "x" not in getattr(message, "_fields", ()):
        kind = type(message).__name__
        raise broken(algorithm, "broadcast", f"returns a {kind}; expected a NamedTuple with x")
    checked, (state, client, grad) = CheckedAlgorithm(algorithm, message.x), member
    local = checked.begin(message, state, client)
    y = checked.first_point(message, state, client).clone()
    carry = Carry(y, local, descent.init(y))
    y, local, _ = local_step(checked, descent, carry, grad, client)
    client = client._replace(draws=drawn(algorithm.client_draws, y, 0, 0, 0))
    upload, kept = checked.finish(y, local, message, state, client)
    return ClientHookResults(upload, kept, y)


def call_update(algorithm: Algorithm, server: Any, uploads: Sequence[Any], cohort: Cohort) -> Any:
    """The server after a round with the plain mean of these uploads."""
    dtype = server.x.dtype  # as the engine's means, whatever the dtypes of the uploads

    def mean(*leaves: Tensor) -> Tensor:
        return torch.stack([leaf.to(dtype) for leaf in leaves]).mean(0)

    cohort = cohort._replace(draws=drawn(algorithm.server_draws, server.x, 0, 0))
    after = call(algorithm, "update", server, tree_map(mean, *uploads), cohort)
    require_form(algorithm, "update", "a server", after, "init_server", server)
    _require_numbers(algorithm, call(algorithm, "round_numbers", after))
    return after


def require_repeatable(
    algorithm: Algorithm,
    descent: Descent,
    x0: Vector,
    mean: Vector | None,
    members: Sequence[Callable[[], Member]],
    cohort: Cohort,
) -> None:
    """Do a round twice, the clients in another order, and compare everything bit for bit.

    Args:
        algorithm: whose hooks are called.
        descent: of the local steps.
        x0: the initial model.
        mean: of all full gradients there; None without a warm start.
        members: each makes the inputs of a client, with the same values at every call.
        cohort: the round's.

    Raises:
        BrokenRuleError: a hook returns other values the second time, or another structure for one
            client than for the other, or breaks another rule.
        Exception: whatever else a faulty hook raises.
    """
    server = first_server(algorithm, x0, mean)
    _require_same(algorithm, "init_server", server, first_server(algorithm, x0, mean))
    points = full_gradient_points(algorithm, server)
    message = call(algorithm, "broadcast", server, cohort)
    _require_first_point(algorithm, points, message)
    once = [call_client_hooks(algorithm, descent, message, made()) for made in members]
    for result in once[1:]:
        require_form(
            algorithm, "finish", "an upload", result.upload, "for another client", once[0].upload
        )
    again = [call_client_hooks(algorithm, descent, message, made()) for made in reversed(members)]
    for first, second in zip(once, reversed(again), strict=True):
        _require_same(algorithm, "finish", first, second)
    uploads = [result.upload for result in once]
    after = call_update(algorithm, server, uploads, cohort)
    _require_same(algorithm, "update", after, call_update(algorithm, server, uploads, cohort))
    _require_same(algorithm, "broadcast", message, call(algorithm, "broadcast", server, cohort))
    # Once more after a round, in which the models of the server have become different ones.
    points = full_gradient_points(algorithm, after)
    message = call(algorithm, "broadcast", after, cohort)
    _require_first_point(algorithm, points, message)


def require_repeatable_without_data(algorithm: Algorithm, descent: Descent) -> None:
    """The same on a small model of made-up values, where no data are at hand.

    Args:
        algorithm: whose hooks are called.
        descent: of the local steps, of a model of ``SMALL`` parameters.

    Raises:
        BrokenRuleError, Exception: see ``require_repeatable``.
    """
    generator = torch.Generator().manual_seed(0)
    x0, *noise = (torch.randn(SMALL, generator=generator) for _ in range(3))
    algorithm, number = with_facts(algorithm, descent), torch.ones((), dtype=torch.float64)

    def made(noise: Vector) -> Member:
        state = first_state(algorithm, x0, x0.clone, noise)
        client = Client(
            0 * number,
            0 * number,
            number,
            0.1 * number,
            number,
            noise if points else None,
            made_up_counts(algorithm, x0),
        )
        return Member(state, client, TrialGrad(lambda y: y + noise, algorithm))

    members, mean = [lambda own=own: made(own) for own in noise], torch.stack(noise).mean(0)
    points = full_gradient_points(algorithm, first_server(algorithm, x0, mean))
    grads = known_to_server(algorithm, [point + mean for point in points])
    require_repeatable(algorithm, descent, x0, mean, members, Cohort(0, 2, 4, 0.1, grads))


def require_form(
    algorithm: Algorithm, hook: str, what: str, found: Any, origin: str, expected: Any
) -> None:
    """Check that a tree has the structure, shapes and dtypes of another one.

    Args:
        algorithm: that has the hook.
        hook: that returned the tree.
        what: the tree is called in the error.
        found: the tree.
        origin: the hook, or the call, that returned the other tree.
        expected: the other tree.

    Raises:
        BrokenRuleError: it has not, or has something else than tensors.
    """
    new, old = (_form(algorithm, hook, tree) for tree in (found, expected))
    if new != old:
        raise broken(
            algorithm,
            hook,
            f"returns {what} with other fields, shapes or dtypes than {origin}: found {new}, "
            f"expected {old}",
        )


def _form(algorithm: Algorithm, hook: str, tree: Any) -> str:
    """A tree's structure, shapes and dtypes as text: "Server(x: float32[650], past: (...))"."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}"
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None)
        inner = [_form(algorithm, hook, leaf) for leaf in tree]
        if names is None:  # past models, whose number may grow
            return "(...)"
        fields = (f"{name}: {leaf}" for name, leaf in zip(names, inner, strict=True))
        return f"{type(tree).__name__}({', '.join(fields)})"
    raise broken(
        algorithm,
        hook,
        f"returns or receives {type(tree).__name__}; expected a NamedTuple of tensors",
    )


def _require_tensors(algorithm: Algorithm, hook: str, what: str, found: Any) -> None:
    """Check that a hook returned a NamedTuple of tensors."""
    fields = getattr(found, "_fields", None)
    if not isinstance(found, tuple) or fields is None:
        kind = type(found).__name__
        raise broken(algorithm, hook, f"returns a {kind} as {what}; expected a NamedTuple")
    for name, leaf in zip(fields, found, strict=True):
        if not isinstance(leaf, Tensor):
            kind = type(leaf).__name__
            raise broken(
                algorithm, hook, f"returns {what} whose {name} is a {kind}; expected a tensor"
            )


def _require_numbers(algorithm: Algorithm, found: Any) -> None:
    """Check that ``round_numbers`` returned names and a number for each."""
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise broken(
            algorithm, "round_numbers", f"returns {found!r:.60}; expected names with their numbers"
        )
    for name, value in found.items():
        number = value.ndim == 0 if isinstance(value, Tensor) else isinstance(value, int | float)
        if not number:
            got = f"{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise broken(
                algorithm,
                "round_numbers",
                f"returns {name!r} of {got}; expected a number or a tensor of shape []",
            )


def _require_like(algorithm: Algorithm, hook: str, found: Any, x: Vector) -> None:
    """Check that a hook returned a vector of the model's shape, dtype and device."""
    new = (found.shape, found.dtype, found.device) if isinstance(found, Tensor) else None
    if new != (x.shape, x.dtype, x.device):
        got = (
            type(found).__name__
            if new is None
            else f"{_form(algorithm, hook, found)} on {found.device}"
        )
        raise broken(
            algorithm,
            hook,
            f"returns {got}, expected {_form(algorithm, hook, x)} on {x.device}, as the model; "
            "make tensors by zeros_like, never by torch.zeros",
        )


def _require_first_point(algorithm: Algorithm, points: Sequence[Vector], message: Any) -> None:
    """Check that the first of the points, if there are any, is the model that clients receive."""
    if points and not torch.equal(points[0], message.x):
        raise broken(
            algorithm,
            "full_gradient_points",
            "returns another first point than the x of the message, at which the clients' "
            "full_grad is taken; let it return the x of broadcast first",
        )


def _require_same(algorithm: Algorithm, hook: str, first: Any, second: Any) -> None:
    """Check that two results of the same arguments are equal, bit for bit."""
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    if all(torch.equal(_bits(one), _bits(other)) for one, other in pairs):
        return
    raise broken(
        algorithm,
        hook,
        "returned other values when the same clients were run again, in another order: a hook "
        "keeps something between calls, in a module or an attribute, or draws at random; keep it "
        "in the server or in the client's state",
    )


def _bits(leaf: Tensor) -> Tensor:
    """The bytes of a tensor, among which NaN equals itself."""
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8)
