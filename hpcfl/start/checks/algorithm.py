"""Check the algorithm of a job: its hooks on real batches, its server's memory."""

from collections.abc import Sequence
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from hpcfl.algorithms.facts import Cohort, Forward, LossTerms
from hpcfl.algorithms.layout import stand_in
from hpcfl.engine.hook_rules import CheckedAlgorithm, hook_advice, known_to_server
from hpcfl.engine.trial import (
    SMALL,
    Member,
    digest,
    require_repeatable,
    require_repeatable_without_data,
)
from hpcfl.errors import JobError, as_job_error
from hpcfl.job.schema import LoadedJob
from hpcfl.local.gradient import check_terms
from hpcfl.start.checks.model import gradient_at, keeps_something
from hpcfl.start.checks.trial import Trial
from hpcfl.start.components.components import Components
from hpcfl.types import Batch, Vector
from hpcfl.user_code.generators import restored


def check_algorithm_without_data(loaded: LoadedJob) -> None:
    """Run the hooks of the job's algorithm on made-up values, without data.

    Raises:
        JobError: a hook of a class of the user's raises, or breaks a rule of
            ``hpcfl/algorithms/base.py``.
    """
    name = f"algorithm.name: {loaded.names['algorithm']}"
    algorithm = loaded.job.algorithm
    with as_job_error(name, "its dry round failed", "", algorithm, advice=hook_advice), restored():
        require_repeatable_without_data(algorithm, loaded.job.local.descent(stand_in(SMALL)))


def check_features(components: Components) -> tuple[str, ...]:
    """Check that the model has the features that the algorithm uses.

    Returns:
        A line for the user, where they are features that no local step changes.

    Raises:
        JobError: there are none.
    """
    algorithm = components.job.algorithm
    layout = algorithm.layout
    if not algorithm.needs_features:
        return ()
    name = f"algorithm.name: {components.loaded.names['algorithm']}"
    if not layout.last_dense:
        raise JobError(
            f"{name} uses features, the input of a last dense layer, and this model has none"
        )
    if set(layout.names) <= set(layout.last_dense):
        return (
            f"{name} uses features, the input of the last dense layer, but no other layer "
            "of the model is trained: they stay the same, and a loss of them has no gradient",
        )
    return ()


def check_algorithm(trial: Trial) -> None:
    """Run one local step of each client on its batch, and the server's step, twice.

    Raises:
        JobError: a hook of a class of the user's raises, draws from a global generator, keeps
            something between calls, or breaks another rule of ``hpcfl/algorithms/base.py``.
    """
    components, x0, clients = trial.components, trial.components.model.x0, trial.clients
    # Without running statistics, which another class carries: errors are the method's own.
    algorithm = CheckedAlgorithm(components.job.algorithm)
    start = (x0,) if algorithm.warm_start else ()
    initial = [_full_gradients(trial, client, start) for client in clients]
    warm = _means(initial)
    with trial.algorithm_errors():
        points = algorithm.full_gradient_points(algorithm.init_server(x0, *warm))
    full = [_full_gradients(trial, client, points) for client in clients]
    grads = known_to_server(algorithm, _means(full))
    members = [
        partial(_member, trial, algorithm, client, own[:1], first)
        for client, own, first in zip(clients, full, initial, strict=True)
    ]
    cohort = Cohort(
        0, len(members), len(components.population.rows), components.job.local_lr(0), grads
    )
    gradient = _TrialGradient(trial)
    with trial.algorithm_errors():
        require_repeatable(
            algorithm, components.training.descent, gradient, x0, warm, members, cohort
        )


def _means(gradients: Sequence[tuple[Vector, ...]]) -> tuple[Vector, ...]:
    """The clients' plain mean at each point."""
    return tuple(torch.stack(at_point).mean(0) for at_point in zip(*gradients, strict=True))


def _member(
    trial: Trial,
    algorithm: CheckedAlgorithm,
    client: int,
    full: tuple[Vector, ...],
    initial: tuple[Vector, ...],
) -> Member:
    """A client with its first batch and its first state.

    Args:
        trial: of the job.
        algorithm: whose hooks are called.
        client: its number.
        full: its full gradient, if the algorithm takes any.
        initial: its full gradient at the initial model, with a warm start.
    """
    components = trial.components
    task = components.population.clients.task(client, 0, steps=1)
    about = task.client._replace(full_grad=full[0]) if full else task.client
    state = algorithm.init_client(components.model.x0, components.random_init(client), *initial)
    return Member(task._replace(client=about, batches=iter([trial.batches[client]])), state)


class _TrialGradient:
    """The trial's ``Gradient``; errors of the model are named as the model's."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self.clip, self.statistics = trial, trial.gradient.clip, None
        self.view = trial.gradient.view
        self._known: dict[int, list[tuple[list[int], list[int]]]] = {}

    def on(self, batch: Batch, seed: int) -> "_TrialBatch":
        """See ``Gradient.on``; the seeds of two clients differ."""
        return _TrialBatch(self._trial, batch, seed, self._known.setdefault(seed, []))


class _TrialBatch:
    """See ``BatchFunction``.

    Args:
        trial: of the job.
        batch: of a client.
        seed: of its dropout.
        known: digests of points and of their gradients, in the order of the first round's calls.
    """

    def __init__(
        self, trial: Trial, batch: Batch, seed: int, known: list[tuple[list[int], list[int]]]
    ) -> None:
        self._trial, self._batch, self._seed = trial, batch, seed
        self._of_model, self._known, self._calls = (trial.gradient.on(batch, seed), known, 0)

    def gradient(
        self, point: Vector, terms: LossTerms | None, statistics: Vector | None
    ) -> tuple[Tensor, Vector, Vector | None]:
        if terms is None:
            value, found = gradient_at(self._trial, point, self._batch, self._seed)
            self._require_known(point, found)
            return value, found, statistics

        def made_terms(forward: Forward) -> Tensor:
            # Errors of this function are the algorithm's.
            with self._trial.algorithm_errors():
                made = terms(forward)
                check_terms(made, forward.losses)
            return made

        with self._trial.model_errors(self._batch), restored():  # every step seeds the generator
            return self._of_model.gradient(point, made_terms, statistics)

    def forward(self, point: Vector) -> Forward:
        with self._trial.model_errors(self._batch), restored():
            return self._of_model.forward(point)

    def _require_known(self, point: Vector, found: Vector) -> None:
        """Refuse a model with another gradient at a point than in the first round.

        Else the algorithm would be blamed for it.
        """
        pair, known = (digest(point), digest(found)), self._known
        if self._calls == len(known):
            known.append(pair)
        elif known[self._calls][0] == pair[0] and known[self._calls][1] != pair[1]:
            raise keeps_something(self._trial, "gradient")
        self._calls += 1


def _full_gradients(trial: Trial, client: int, points: tuple[Vector, ...]) -> tuple[Vector, ...]:
    """The client's full gradients at these points; of one batch, to be quick."""
    if not points:
        return ()
    with trial.model_errors(trial.batches[client]):
        survey = trial.components.population.clients.task(client, 0, steps=1).full_batches
        return trial.gradient.full(points, islice(survey, 1))
