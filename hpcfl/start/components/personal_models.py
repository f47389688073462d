"""The clients' own models, as an evaluation scores them."""

from collections.abc import Iterator, Sequence
from typing import Any

from hpcfl.algorithms.base import Message
from hpcfl.clients.client_states import ClientStates
from hpcfl.engine.carried import personal_point
from hpcfl.local.executor import Executor
from hpcfl.local.fine_tuning import FineTuning, Start
from hpcfl.local.gradient import Gradient
from hpcfl.local.joined import at_statistics, joined, split
from hpcfl.local.sequential import Sequential
from hpcfl.start.components.components import Components
from hpcfl.start.components.executors import clients_at_once, executor_of
from hpcfl.store.base import ClientStore
from hpcfl.types import Vector


class PersonalModels:
    """The own models of a rank's clients.

    Args:
        components: of the job.
        store: of the clients' states.
        gradient: of the model's loss, for ``evaluate.personal.steps``.
    """

    def __init__(self, components: Components, store: ClientStore, gradient: Gradient) -> None:
        self._model, self._training = components.model, components.training
        self._clients, self._store = components.population.clients, store
        self._states: ClientStates = components.client_states(store)
        self._size = clients_at_once(components)
        self._steps = components.job.evaluate.tuning_steps
        self._tuning = _fine_tuning(components, gradient) if self._steps else None

    def last(self, client: int, x: Vector) -> Vector | None:
        """The last local model of a client, on the device; None before its first round.

        Its running statistics are the client's own, or those of the evaluated model ``x``.
        """
        state, name = self._store.load(client), self._training.schema.local_model_field
        if state is None or name is None:
            return None
        model, own = getattr(state, name), split(state).statistics
        statistics = x[len(self._model.x0) :] if own is None else own
        return at_statistics(
            *(part.to(self._model.device, x.dtype) for part in (model, statistics))
        )

    def scored(self, clients: Sequence[int], x: Vector, round: int) -> Iterator[Vector]:
        """The clients' own models as ``evaluate.personal`` scores them, on the device, in turn.

        Args:
            clients: their numbers; one that never took part has its first state.
            x: [P], or [P + Q] with running statistics, the evaluated model.
            round: rounds completed.
        """
        states, size = self._states, self._size
        for group in (clients[k : k + size] for k in range(0, len(clients), size)):
            own = (states.to_device(client, states.read(client)) for client in group)
            found = [personal_point(self._training.algorithm, x, state) for state in own]
            models = [x if model is None else model for model in found]
            if self._tuning is not None:
                models = self._tuned(self._tuning, group, models, x, round)
            yield from models

    def _tuned(
        self, tuning: Executor, clients: Sequence[int], models: list[Vector], x: Vector, round: int
    ) -> list[Vector]:
        """The models of these clients after ``evaluate.personal.steps`` local steps."""
        # The batches and the rate of the last round: a cosine ends at a rate of 0 after it.
        last, starts = max(round - 1, 0), [self._start(model) for model in models]
        tasks = [self._clients.task_apart(client, last, self._steps) for client in clients]
        message = Message(x[: len(self._model.x0)])
        results = tuning.train(message, tasks, starts, local_models=True)
        self._clients.pop_elapsed_s()  # no time of a round
        return [at_statistics(each.local_model, split(each.state).statistics) for each in results]

    def _start(self, point: Vector) -> Any:
        """The state from which a client is tuned: a model, and its running statistics."""
        size = len(self._model.x0)
        start, own = Start(point[:size]), point[size:]
        return joined(start, own if len(own) else None)


def _fine_tuning(components: Components, gradient: Gradient) -> Executor:
    """The executor of the job's kind that trains before personal scores."""
    training, initial = components.training, components.model.initial_statistics
    algorithm = FineTuning().with_facts(training.algorithm.facts)
    one = Sequential(algorithm, gradient, training.descent)
    return executor_of(components, one, shared=[False] * (initial is not None))
