"""Carry a model's running statistics [Q] through the rounds of any method, beside its vectors.

mean    the server has them and sends them; a client's local steps move them, by the first gradient
        of each step; it sends them back, and the server's become their mean by the job's weights
local   every client has its own, from the initial ones on; they are never sent

An executor moves them (``hpcfl.local.executor``); ``WithStatistics`` is the server's side.
"""

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, RandomInit
from hpcfl.local.joined import at_statistics, joined, split
from hpcfl.types import Scalar, Vector

Carried = Literal["mean", "local"]


def evaluated_point(algorithm: Algorithm, server: Any) -> Vector:
    """The model that is evaluated: [P], or [P + Q] with its running statistics.

    Where clients keep their own, those are the initial ones.
    """
    statistics = split(server).statistics
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
    made, own = algorithm.personal_model(point[:size], state), split(state).statistics
    return None if made is None else at_statistics(made, point[size:] if own is None else own)


class WithStatistics(Algorithm):
    """A method whose server, or whose clients, have running statistics.

    Its own facts, and what it says of itself, are the method's.  An executor trains the method
    itself: only the hooks that the server calls are here.

    Args:
        method: whose hooks these call.
        initial: [Q], the statistics that the model was made with.
        carried: who has them.
    """

    def __init__(self, method: Algorithm, initial: Vector, carried: Carried) -> None:
        for name in Algorithm.__annotations__:
            if hasattr(method, name):  # no facts are known yet in some trials
                object.__setattr__(self, name, getattr(method, name))
        self.method, self.initial, self.carried = method, initial, carried

    @property
    def of_server(self) -> Vector | None:
        """Those of the first server; None if clients keep their own."""
        return None if self.carried == "local" else self.initial

    @property
    def of_client(self) -> Vector | None:
        """Those of a client's first state; None if the server has them."""
        return self.initial if self.carried == "local" else None

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
        return joined(self.method.init_server(x0, *grad), self.of_server)

    def init_client(self, x0: Vector, random_init: RandomInit, *grad: Vector) -> Any:
        return joined(self.method.init_client(x0, random_init, *grad), self.of_client)

    def full_gradient_points(self, server: Any) -> tuple[Vector, ...]:
        return self.method.full_gradient_points(split(server).tree)

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        inner, statistics = split(server)
        return joined(self.method.broadcast(inner, cohort), statistics)

    def begin(self, message: Any, state: Any, client: Client) -> NoReturn:
        raise TypeError("an executor trains the method, not the server's side of its statistics")

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        (inner, before), (means, after) = split(server), split(mean)
        # The mean of no clients is zero.
        statistics = after if cohort.size else before
        return joined(self.method.update(inner, means, cohort), statistics)

    def evaluated(self, server: Any) -> Vector:
        return self.method.evaluated(split(server).tree)

    def round_numbers(self, server: Any) -> Mapping[str, Scalar | float]:
        return self.method.round_numbers(split(server).tree)

    def personal_model(self, x: Vector, state: Any) -> Vector | None:
        made = self.method.personal_model(x, split(state).tree)
        return x if made is None and self.of_client is not None else made

    @property
    def has_personal_models(self) -> bool:
        """Whether clients have models, or statistics, of their own."""
        return self.of_client is not None or self.method.has_personal_models

    def down_bytes(self, message: Any) -> int:
        inner, statistics = split(message)
        return self.method.down_bytes(inner) + (0 if statistics is None else statistics.nbytes)

    def up_bytes(self, upload: Any) -> int:
        inner, statistics = split(upload)
        return self.method.up_bytes(inner) + (0 if statistics is None else statistics.nbytes)
