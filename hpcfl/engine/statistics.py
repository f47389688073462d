"""Carry a model's running statistics [Q] through the rounds of any method, beside its vectors.

mean    the server has them and sends them; a client's local steps move them, by the first gradient
        of each step; it sends them back, and the server's become their mean by the job's weights
local   every client has its own, from the initial ones on; they are never sent

``WithStatistics`` puts them as a further field into the tensors of the method whose hooks it calls.
"""

from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, Grad, RandomInit
from hpcfl.errors import BrokenRuleError
from hpcfl.types import Scalar, Vector

FIELD = "statistics"
Carried = Literal["mean", "local"]


class _Split(NamedTuple):
    """A tree of a method, and the running statistics that lay beside it."""

    tree: Any
    statistics: Vector


@cache
def _type_with_statistics(inner: Any) -> Any:
    """The NamedTuple of a method's with one field more.

    Raises:
        BrokenRuleError: the method has a field of this name.
    """
    if FIELD in inner._fields:
        raise BrokenRuleError(
            f"{inner.__name__} has a field {FIELD}, which hpcfl adds for a model with batch "
            "normalisation; rename it"
        )
    names = [*inner._fields, FIELD]
    made: Any = type(inner.__name__, (namedtuple("_", names),), {"without_statistics": inner})
    return made


def joined(tree: Any, statistics: Vector) -> Any:
    """A method's NamedTuple, and running statistics as its last field."""
    kind: Any = type(tree)
    return _type_with_statistics(kind)(*tree, statistics)


def split(tree: Any) -> _Split:
    """Undo ``joined``."""
    *fields, statistics = tree
    return _Split(type(tree).without_statistics(*fields), statistics)


def statistics_in(tree: Any) -> Vector | None:
    """The running statistics of a server, message or state; None where it has none."""
    return split(tree).statistics if hasattr(type(tree), "without_statistics") else None


def at_statistics(x: Vector, statistics: Vector | None) -> Vector:
    """The point [P + Q] at which a model is evaluated; ``x`` [P] itself without statistics."""
    return x if statistics is None else torch.cat([x, statistics])


def evaluated_point(algorithm: Algorithm, server: Any) -> Vector:
    """The model that is evaluated: [P], or [P + Q] with its running statistics.

    Where clients keep their own, those are the initial ones.
    """
    statistics = statistics_in(server)
    if statistics is None and isinstance(algorithm, WithStatistics):
        statistics = algorithm.initial
    return at_statistics(algorithm.evaluated(server), statistics)


def personal_point(algorithm: Algorithm, point: Vector, state: Any) -> Vector | None:
    """A client's own model, beside the evaluated one; None of a method that makes none.

    Args:
        algorithm: of the run.
        point: [P] or [P + Q], the evaluated model.
        state: of the client.
    """
    if not isinstance(algorithm, WithStatistics):
        return algorithm.personal_model(point, state)
    size = len(point) - len(algorithm.initial)
    made, own = algorithm.personal_model(point[:size], state), statistics_in(state)
    return None if made is None else at_statistics(made, point[size:] if own is None else own)


class WithStatistics(Algorithm):
    """A method and running statistics; its own facts, and what it says of itself, are the method's.

    Args:
        algorithm: the method.
        initial: [Q], the statistics that the model was made with.
        carried: who has them.
    """

    def __init__(self, algorithm: Algorithm, initial: Vector, carried: Carried) -> None:
        for name in Algorithm.__annotations__:
            if hasattr(algorithm, name):  # no facts are known yet in some trials
                object.__setattr__(self, name, getattr(algorithm, name))
        self.method, self._local = algorithm, carried == "local"
        self.initial, self.carried = initial, carried

    @property
    def full_gradient(self) -> Any:
        """As of the method."""
        return self.method.full_gradient

    @property
    def warm_start(self) -> bool:
        """As of the method."""
        return self.method.warm_start

    def with_facts(self, facts: Facts) -> "WithStatistics":
        """A copy whose method has these facts."""
        return WithStatistics(self.method.with_facts(facts), self.initial, self.carried)

    def init_server(self, x0: Vector, *grad: Vector) -> Any:
        return self._with_server(self.method.init_server(x0, *grad), self.initial.to(x0.device))

    def init_client(self, x0: Vector, random_init: RandomInit, *grad: Vector) -> Any:
        state = self.method.init_client(x0, random_init, *grad)
        return joined(state, self.initial.to(x0.device)) if self._local else state

    def full_gradient_points(self, server: Any) -> tuple[Vector, ...]:
        return self.method.full_gradient_points(self._server(server)[0])

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        inner, statistics = self._server(server)
        return self._with_server(self.method.broadcast(inner, cohort), statistics)

    def begin(self, message: Any, state: Any, client: Client) -> Any:
        (inner, sent), (own, kept) = self._server(message), self._state(state)
        statistics = kept if self._local else sent
        return joined(self.method.begin(inner, own, client), statistics)

    def first_point(self, message: Any, state: Any, client: Client) -> Vector:
        own, _ = self._state(state)
        return self.method.first_point(self._server(message)[0], own, client)

    def points(self, y: Vector, local: Any, client: Client) -> tuple[Vector, Vector]:
        return self.method.points(y, split(local).tree, client)

    def direction(
        self, point: Vector, local: Any, grad: Grad, client: Client
    ) -> tuple[Vector, Any]:
        inner, statistics = split(local)
        of_step: Any = grad  # its first call moves them
        of_step.statistics = statistics
        d, after = self.method.direction(point, inner, grad, client)
        return d, joined(after, of_step.statistics)

    def step_scale(self, y: Vector, local: Any, client: Client) -> float | Tensor:
        return self.method.step_scale(y, split(local).tree, client)

    def finish(
        self, y: Vector, local: Any, message: Any, state: Any, client: Client
    ) -> tuple[Any, Any]:
        (inner, statistics), (own, _) = split(local), self._state(state)
        upload, kept = self.method.finish(y, inner, self._server(message)[0], own, client)
        if self._local:
            return upload, joined(kept, statistics)
        return joined(upload, statistics), kept

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        (inner, before), (means, after) = self._server(server), self._server(mean)
        # The mean of no clients is zero.
        statistics = after if cohort.size else before
        return self._with_server(self.method.update(inner, means, cohort), statistics)

    def evaluated(self, server: Any) -> Vector:
        return self.method.evaluated(self._server(server)[0])

    def round_numbers(self, server: Any) -> Mapping[str, Scalar | float]:
        return self.method.round_numbers(self._server(server)[0])

    def personal_model(self, x: Vector, state: Any) -> Vector | None:
        made = self.method.personal_model(x, self._state(state)[0])
        return x if made is None and self._local else made

    @property
    def has_personal_models(self) -> bool:
        """Whether clients have models, or statistics, of their own."""
        return self._local or self.method.has_personal_models

    def down_bytes(self, message: Any) -> int:
        inner, statistics = self._server(message)
        return self.method.down_bytes(inner) + (0 if statistics is None else statistics.nbytes)

    def up_bytes(self, upload: Any) -> int:
        inner, statistics = self._server(upload)
        return self.method.up_bytes(inner) + (0 if statistics is None else statistics.nbytes)

    def _with_server(self, tree: Any, statistics: Vector | None) -> Any:
        """A server, message or upload, with the statistics if it has any."""
        return tree if self._local or statistics is None else joined(tree, statistics)

    def _server(self, tree: Any) -> tuple[Any, Any]:
        """Split a server, message or upload; the statistics are None if clients keep their own."""
        return (tree, None) if self._local else split(tree)

    def _state(self, state: Any) -> tuple[Any, Any]:
        """Split a client's state; the statistics are None if the server has them."""
        return split(state) if self._local else (state, None)
