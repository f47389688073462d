"""Carry through the rounds of any method, beside its tensors, what belongs to none.

Running statistics [Q] of a model:

mean    the server has them and sends them; a client's local steps move them, by the first gradient
        of each step; it sends them back, and the server's become their mean by the job's weights
local   every client has its own, from the initial ones on; they are never sent

The state of a client's optimiser, where it is kept (``local.keep_optimizer``): the client's own,
from that of the initial model on; never sent, and not touched in rounds without the client.

An executor moves both (``hpcfl.local.executor``); ``Carrying`` is the server's side.
"""

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.facts import Client, Cohort, Facts, RandomInit
from hpcfl.algorithms.optim import Descent
from hpcfl.local.joined import at_statistics, joined, split
from hpcfl.types import Scalar, Vector

Carried = Literal["mean", "local"]


def evaluated_point(algorithm: Algorithm, server: Any) -> Vector:
    """The model that is evaluated: [P], or [P + Q] with its running statistics.

    Where clients keep their own, those are the initial ones.
    """
    statistics = split(server).statistics
    if statistics is None and isinstance(algorithm, Carrying):
        statistics = algorithm.initial
    return at_statistics(algorithm.evaluated(server), statistics)


def personal_point(algorithm: Algorithm, point: Vector, state: Any) -> Vector | None:
    """A client's own model, beside the evaluated one; None of a method that makes none.

    Args:
        algorithm: of the run.
        point: [P] or [P + Q], the evaluated model.
        state: of the client.
    """
    initial = algorithm.initial if isinstance(algorithm, Carrying) else None
    if initial is None:
        return algorithm.personal_model(point, state)
    size = len(point) - len(initial)
    made, own = algorithm.personal_model(point[:size], state), split(state).statistics
    return None if made is None else at_statistics(made, point[size:] if own is None else own)


class Carrying(Algorithm):
    """A method whose server, or whose clients, have running statistics or optimiser states.

    Its own facts, and what it says of itself, are the method's.  An executor trains the method
    itself: only the hooks that the server calls are here.

    Args:
        method: whose hooks these call.
        initial: [Q], the statistics that the model was made with; None where rounds move none.
        carried: who has them.
        kept: the clients' optimiser, if they keep its state.
    """

    def __init__(
        self,
        method: Algorithm,
        initial: Vector | None,
        carried: Carried | None,
        kept: Descent | None = None,
    ) -> None:
        for name in Algorithm.__annotations__:
            if hasattr(method, name):  # no facts are known yet in some trials
                object.__setattr__(self, name, getattr(method, name))
        self.method, self.initial, self.carried, self.kept = method, initial, carried, kept

    @property
    def of_server(self) -> Vector | None:
        """The statistics of the first server; None if it has none."""
        return None if self.carried == "local" else self.initial

    @property
    def of_client(self) -> Vector | None:
        """Those of a client's first state; None if it has none."""
        return self.initial if self.carried == "local" else None

    def first_optimizer(self, x0: Vector) -> Any:
        """The state of a client's optimiser before its first round; None if none is kept."""
        return None if self.kept is None else self.kept.init(x0)

    @property
    def full_gradient(self) -> Any:
        """As of the method."""
        return self.method.full_gradient

    @property
    def warm_start(self) -> bool:
        """As of the method."""
        return self.method.warm_start

    def with_facts(self, facts: Facts) -> "Carrying":
        """A copy whose method has these facts."""
        return Carrying(self.method.with_facts(facts), self.initial, self.carried, self.kept)

    def init_server(self, x0: Vector, *grad: Vector) -> Any:
        return joined(self.method.init_server(x0, *grad), self.of_server)

    def init_client(self, x0: Vector, random_init: RandomInit, *grad: Vector) -> Any:
        state = self.method.init_client(x0, random_init, *grad)
        return joined(state, self.of_client, self.first_optimizer(x0))

    def full_gradient_points(self, server: Any) -> tuple[Vector, ...]:
        return self.method.full_gradient_points(split(server).tree)

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        inner, statistics, _ = split(server)
        return joined(self.method.broadcast(inner, cohort), statistics)

    def begin(self, message: Any, state: Any, client: Client) -> NoReturn:
        raise TypeError("an executor trains the method, not the server's side of what it carries")

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        (inner, before, _), (means, after, _) = split(server), split(mean)
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
        inner, statistics, _ = split(message)
        return self.method.down_bytes(inner) + (0 if statistics is None else statistics.nbytes)

    def up_bytes(self, upload: Any) -> int:
        inner, statistics, _ = split(upload)
        return self.method.up_bytes(inner) + (0 if statistics is None else statistics.nbytes)
