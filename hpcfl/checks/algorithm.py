"""Check the algorithm of a job: its hooks on real batches, its server's memory."""

from functools import partial
from itertools import islice

import torch
from torch import Tensor

from hpcfl.algorithms.facts import Cohort, Forward, LossTerms
from hpcfl.checks.model import gradient_at
from hpcfl.checks.trial import Trial
from hpcfl.engine.hook_rules import (
    SMALL,
    Member,
    first_server,
    first_state,
    full_gradient_points,
    hook_advice,
    known_to_server,
    require_repeatable,
    require_repeatable_without_data,
)
from hpcfl.errors import JobError, as_job_error
from hpcfl.job.schema import LoadedJob
from hpcfl.layout import stand_in
from hpcfl.local.grad import StepGrad
from hpcfl.local.gradient import check_terms
from hpcfl.setup.components import Components
from hpcfl.types import Vector
from hpcfl.user_code.generators import restored


def check_algorithm_without_data(loaded: LoadedJob) -> None:
    """Run the hooks of the job's algorithm on made-up values, without data.

    Raises:
        JobError: a hook of a class of the user's raises, or breaks a rule of
            ``hpcfl/algorithms/base.py``.
    """
    name = f"algorithm.name: {loaded.names['algorithm']}"
    algorithm = loaded.job.algorithm
    with (
        as_job_error(name, "its dry round failed", "", algorithm, advice=hook_advice),
        restored(),
    ):
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
    components, x0, clients = trial.components, trial.components.x0, trial.clients
    # Without running statistics, which another class carries: errors are the method's own.
    algorithm = components.job.algorithm
    start = (x0,) if algorithm.warm_start else ()
    initial = [next(iter(_full_gradients(trial, client, start)), None) for client in clients]
    known = [grad for grad in initial if grad is not None]
    mean = torch.stack(known).mean(0) if known else None
    with trial.algorithm_errors():
        server = first_server(algorithm, x0, mean)
        points = full_gradient_points(algorithm, server)
    full_grads = [_full_gradients(trial, client, points) for client in clients]
    means = [torch.stack(grads).mean(0) for grads in zip(*full_grads, strict=True)]
    full = [next(iter(grads), None) for grads in full_grads]
    members = [
        partial(_member, trial, client, [], grad, first)
        for client, grad, first in zip(clients, full, initial, strict=True)
    ]
    size, lr = len(members), components.job.local_lr(0)
    cohort = Cohort(0, size, len(components.rows), lr, known_to_server(algorithm, means))
    with trial.algorithm_errors():
        require_repeatable(algorithm, components.descent, x0, mean, members, cohort)


def _member(
    trial: Trial,
    client: int,
    known: list[tuple[Vector, Vector]],
    full: Vector | None,
    initial: Vector | None,
) -> Member:
    """The client with its first state and the gradient of its batch.

    Args:
        trial: of the job.
        client: its number.
        known: points and their gradients, in the order of the calls; each is computed once,
            however often the client's round is repeated.
        full: its full gradient; None where the algorithm takes none.
        initial: its full gradient at the initial model; None without a warm start.
    """
    components = trial.components
    task = components.clients.task(client, 0, steps=1)
    about = task.client._replace(full_grad=full)
    algorithm, random_init = components.job.algorithm, components.random_init(client)
    state = first_state(algorithm, components.x0, random_init, initial)
    grad = _TrialGradient(trial, client, task.dropout_seed, known)
    return Member(state, about, grad)


class _TrialGradient(StepGrad):
    """The gradient of a client's batch; errors of the model are named as the model's.

    Those of the function that makes the terms of a loss are the algorithm's.
    """

    def __init__(
        self, trial: Trial, client: int, seed: int, known: list[tuple[Vector, Vector]]
    ) -> None:
        self._trial, self._own, self._first = trial, trial.batches[client], seed
        self._known, self._count = known, 0
        super().__init__(trial.gradient.on(self._own, seed))

    def __call__(self, point: Vector, loss: LossTerms | None = None) -> Vector:
        self._require_outside()
        if loss is not None:

            def terms(forward: Forward) -> Tensor:
                with self._trial.algorithm_errors():
                    made = loss(forward)
                    check_terms(made, forward.losses)
                return made

            with self._trial.model_errors(self._own), restored():  # every step seeds the generator
                return super().__call__(point, terms)
        self._count, known = self._count + 1, self._known
        if self._count <= len(known) and torch.equal(known[self._count - 1][0], point):
            return known[self._count - 1][1].clone()
        found = gradient_at(self._trial, point, self._own, self._first)
        if self._count > len(known):
            known.append((point.clone(), found.clone()))
        return found

    def forward(self, point: Vector) -> Forward:
        self._require_outside()
        with self._trial.model_errors(self._own), restored():
            return super().forward(point)


def _full_gradients(trial: Trial, client: int, points: tuple[Vector, ...]) -> tuple[Vector, ...]:
    """The client's full gradients at these points; of one batch, to be quick."""
    if not points:
        return ()
    with trial.model_errors(trial.batches[client]):
        survey = trial.components.clients.task(client, 0, steps=1).full_batches
        return trial.gradient.full(points, islice(survey, 1))
