"""The rules of an algorithm's hooks, each checked as the hook is called.

A hook changes nothing in place, draws from no global generator, returns the same structure at every
call, and the same values for the same arguments, whichever client came before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError
from inspect import getattr_static, signature
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, FullGradientScope, Grad, RandomInit
from hpcfl.engine.carried import Carrying
from hpcfl.errors import BrokenRuleError, defined
from hpcfl.store.schema import STORED
from hpcfl.types import Vector
from hpcfl.user_code.generators import generators

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
    cls = type(algorithm.method if isinstance(algorithm, Carrying) else algorithm)
    return BrokenRuleError(f"{cls.__name__}.{hook} {rule}", defined(getattr(cls, hook)))


def known_to_server(algorithm: Algorithm, means: Sequence[Vector]) -> tuple[Vector, ...]:
    """The means of full gradients that ``Cohort.grads`` has: all or none."""
    return tuple(means) if algorithm.full_gradient == "server" else ()


class CheckedAlgorithm(Algorithm):
    """A method in a trial: every hook of a round checks its rules as it is called.

    Args:
        method: whose hooks are called.

    Raises:
        BrokenRuleError: by every hook that breaks a rule.
        Exception: whatever else a faulty hook raises.
    """

    def __init__(self, method: Algorithm) -> None:
        for name in Algorithm.__annotations__:
            if hasattr(method, name):  # no facts are known yet in some trials
                object.__setattr__(self, name, getattr(method, name))
        self.method = method

    @property
    def full_gradient(self) -> FullGradientScope:
        """As of the method, if that is one of them."""
        scope, kind = self.method.full_gradient, type(self.method)
        if scope not in get_args(FullGradientScope):
            known = ", ".join(get_args(FullGradientScope))
            found: Any = getattr_static(kind, "full_gradient")
            location = defined(found.fget) if isinstance(found, property) and found.fget else ""
            raise BrokenRuleError(
                f"{kind.__name__}.full_gradient is {scope!r:.60}, expected one of {known}", location
            )
        return scope

    @property
    def warm_start(self) -> bool:
        """As of the method."""
        return self.method.warm_start

    @property
    def has_personal_models(self) -> bool:
        """As of the method."""
        return self.method.has_personal_models

    def init_server(self, x0: Vector, *grad: Vector) -> Any:
        """With a warm start a server of the same form without the gradient."""
        return self._first("init_server", "a server", (x0,), grad)

    def init_client(self, x0: Vector, random_init: RandomInit, *grad: Vector) -> Any:
        """A state that a store holds; with a warm start of the same form without the gradient."""
        hook, what = "init_client", "a state"
        state = self._first(hook, what, (x0, random_init), grad)
        self._require_tensors(hook, what, state)
        for name, leaf in zip(state._fields, state, strict=True):
            if leaf.dtype not in STORED:
                known = ", ".join(map(str, STORED))
                rule = f"returns a state whose {name} is {leaf.dtype}; expected {known}"
                raise broken(self.method, hook, rule)
        return state

    def full_gradient_points(self, server: Any) -> tuple[Vector, ...]:
        """Vectors like the model; none where the method takes no full gradients."""
        if self.full_gradient == "none":
            return ()
        hook = "full_gradient_points"
        points = call(self.method, hook, server)
        if not isinstance(points, tuple) or not points:
            raise broken(self.method, hook, f"returns {points!r:.60}; expected a tuple of vectors")
        for point in points:
            _require_like(self.method, hook, point, server.x)
        return points

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        """A NamedTuple with x."""
        message = call(self.method, "broadcast", server, cohort)
        if "x" not in getattr(message, "_fields", ()):
            kind = type(message).__name__
            rule = f"returns a {kind}; expected a NamedTuple with x"
            raise broken(self.method, "broadcast", rule)
        return message

    def begin(self, message: Any, state: Any, client: Client) -> Any:
        """Tensors alone."""
        local = call(self.method, "begin", message, state, client)
        form_of(self.method, "begin", local)
        return local

    def first_point(self, message: Any, state: Any, client: Client) -> Vector:
        """A vector like the model."""
        return self._vector("first_point", message.x, message, state, client)

    def points(self, y: Vector, local: Any, client: Client) -> tuple[Vector, Vector]:
        """Two vectors like the model."""
        pair = self._pair("points", _FROM_POINTS, y, local, client)
        for point in pair:
            _require_like(self.method, "points", point, y)
        return pair

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        """A vector like the model, and local quantities of the form that ``begin`` returned."""
        hook = "direction"
        d, after = self._pair(hook, _FROM_DIRECTION, point, local, grad, client)
        _require_like(self.method, hook, d, point)
        require_form(self.method, hook, "local quantities", after, "begin", local)
        return d, after

    def step_scale(self, y: Vector, local: Any, client: Client) -> float | Tensor:
        """A number, or a vector like the model."""
        scale: Any = call(self.method, "step_scale", y, local, client)
        if not isinstance(scale, float | int) and getattr(scale, "shape", None) != ():
            _require_like(self.method, "step_scale", scale, y)
        return scale  # type: ignore[no-any-return]

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        """An upload that has a mean, and a state of the form that ``init_client`` returned."""
        hook = "finish"
        upload, kept = self._pair(hook, _FROM_FINISH, y, local, message, state, client)
        self._require_tensors(hook, "an upload", upload)
        for name, leaf in zip(upload._fields, upload, strict=True):
            if leaf.dtype == torch.bool or leaf.is_complex():
                rule = f"returns an upload whose {name} is {leaf.dtype}, which has no mean; cast it"
                raise broken(self.method, hook, rule)
        require_form(self.method, hook, "a state", kept, "init_client", state)
        if self.has_personal_models:
            self._vector("personal_model", message.x, message.x, kept)
        return upload, kept

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        """A server of the form that ``init_server`` returned."""
        after = call(self.method, "update", server, mean, cohort)
        require_form(self.method, "update", "a server", after, "init_server", server)
        return after

    def round_numbers(self, server: Any) -> Mapping[str, Any]:
        """Names, and a number for each."""
        hook, found = "round_numbers", call(self.method, "round_numbers", server)
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            rule = f"returns {found!r:.60}; expected names with their numbers"
            raise broken(self.method, hook, rule)
        for name, value in found.items():
            scalar = (
                value.ndim == 0 if isinstance(value, Tensor) else isinstance(value, int | float)
            )
            if not scalar:
                got = f"{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                rule = f"returns {name!r} of {got}; expected a number or a tensor of shape []"
                raise broken(self.method, hook, rule)
        return found

    def _first(self, hook: str, what: str, args: Sequence[Any], grad: Sequence[Vector]) -> Any:
        """What a hook returns before round 0: with the gradient, if there is a warm start."""
        first = call(self.method, hook, *args)
        if not grad:
            return first
        warm = call(self.method, hook, *args, *grad)
        require_form(self.method, hook, what, warm, "without a gradient", first)
        return warm

    def _pair(self, hook: str, expected: Sequence[str], *args: Any) -> tuple[Any, Any]:
        """The two things that a hook returns."""
        returned = call(self.method, hook, *args)
        if type(returned) is not tuple or len(returned) != len(expected):
            kind = type(returned).__name__
            found = f"a tuple of {len(returned)}" if kind == "tuple" else kind
            rule = f"returns {found}; expected a plain tuple of {' and '.join(expected)}"
            raise broken(self.method, hook, rule)
        return returned

    def _vector(self, hook: str, x: Vector, *args: Any) -> Vector:
        made: Vector = call(self.method, hook, *args)
        _require_like(self.method, hook, made, x)
        return made

    def _require_tensors(self, hook: str, what: str, found: Any) -> None:
        """Check that a hook returned a NamedTuple of tensors."""
        fields, kind = getattr(found, "_fields", None), type(found).__name__
        if not isinstance(found, tuple) or fields is None:
            raise broken(self.method, hook, f"returns a {kind} as {what}; expected a NamedTuple")
        for name, leaf in zip(fields, found, strict=True):
            if not isinstance(leaf, Tensor):
                rule = f"returns {what} whose {name} is a {type(leaf).__name__}; expected a tensor"
                raise broken(self.method, hook, rule)


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
    new, old = (form_of(algorithm, hook, tree) for tree in (found, expected))
    require_same_form(algorithm, hook, what, new, origin, old)


def require_same_form(
    algorithm: Algorithm, hook: str, what: str, new: str, origin: str, old: str
) -> None:
    """The same, of the texts of both forms."""
    if new != old:
        raise broken(
            algorithm,
            hook,
            f"returns {what} with other fields, shapes or dtypes than {origin}: found {new}, "
            f"expected {old}",
        )


def form_of(algorithm: Algorithm, hook: str, tree: Any) -> str:
    """A tree's structure, shapes and dtypes as text: "Server(x: float32[650], past: (...))"."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}"
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None)
        inner = [form_of(algorithm, hook, leaf) for leaf in tree]
        if names is None:  # past models, whose number may grow
            return "(...)"
        fields = (f"{name}: {leaf}" for name, leaf in zip(names, inner, strict=True))
        return f"{type(tree).__name__}({', '.join(fields)})"
    raise broken(
        algorithm,
        hook,
        f"returns or receives {type(tree).__name__}; expected a NamedTuple of tensors",
    )


def _require_like(algorithm: Algorithm, hook: str, found: Any, x: Vector) -> None:
    """Check that a hook returned a vector of the model's shape, dtype and device."""
    new = (found.shape, found.dtype, found.device) if isinstance(found, Tensor) else None
    if new != (x.shape, x.dtype, x.device):
        got = (
            type(found).__name__
            if new is None
            else f"{form_of(algorithm, hook, found)} on {found.device}"
        )
        raise broken(
            algorithm,
            hook,
            f"returns {got}, expected {form_of(algorithm, hook, x)} on {x.device}, as the model; "
            "make tensors by zeros_like, never by torch.zeros",
        )
