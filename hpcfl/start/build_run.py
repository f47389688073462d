"""Build the engine's ``Run`` of one rank from the components of a job."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcfl.clients.assignment import Balance
from hpcfl.clients.remote_states import RemoteClientStates
from hpcfl.clients.sampling import PowerOfChoice
from hpcfl.comm.base import Comm
from hpcfl.comm.exact import ExactReduction
from hpcfl.comm.fast import FastReduction
from hpcfl.comm.reduction import Reduction
from hpcfl.engine.diagnostics import Observer
from hpcfl.engine.dry_round import FullGradient
from hpcfl.engine.run import Choice, Run, RunHooks, Schedule, Training, WarmStartGroups
from hpcfl.engine.timing import RoundTimer, SimulatedClock
from hpcfl.evaluation.measure import Meter
from hpcfl.evaluation.metrics import Scoring
from hpcfl.io.signals import Signals
from hpcfl.local.gradient import Gradient
from hpcfl.start.components.components import Components
from hpcfl.start.components.executors import make_executor
from hpcfl.start.components.population import Population
from hpcfl.store.base import ClientStore
from hpcfl.types import IntArray, Vector


def build_run(
    components: Components,
    comm: Comm,
    owner: IntArray,
    store: ClientStore,
    gradient: Gradient,
    hooks: RunHooks,
    signals: Signals,
) -> Run:
    """Build the engine's ``Run`` on one rank.

    Args:
        components: of the job.
        comm: the group of ranks.
        owner: [N], the rank that keeps each client's state.
        store: of this rank's client states.
        gradient: of the model's loss.
        hooks: evaluation, log and checkpoints.
        signals: the signals that this process received.
    """
    job, population, model = components.job, components.population, components.model
    training, executor = components.training, make_executor(components, gradient)
    full_gradients = _full_gradients(components, comm)
    steal, participation = job.balance == "steal", population.participation
    balance = Balance(
        lambda t: participation(t).members,
        job.rounds,
        owner,
        (lambda t: population.work_in(participation(t))) if steal else None,
        comm.rank,
        comm.size,
    )
    groups = population.warm_start_groups
    sizes = np.array(population.clients.examples, dtype=np.int64)
    group_balance = Balance(
        groups.__getitem__,
        len(groups),
        owner,
        (lambda group: sizes[groups[group]]) if steal else None,
        comm.rank,
        comm.size,
    )

    states = components.client_states(store)
    sends_states = steal and bool(training.stored_state.fields)
    return Run(
        algorithm=training.algorithm,
        schema=training.schema,
        x0=model.x0,
        warm_start_groups=WarmStartGroups(
            [len(group) for group in groups], group_balance.assignment, components.first_state
        ),
        schedule=Schedule(
            rounds=job.rounds,
            participation=participation,
            assignment=balance.assignment,
            weights=population.participants.weights,
            local_lr=job.local_lr,
            evaluation_due=partial(job.evaluate.due, rounds=job.rounds),
            checkpoint_due=partial(job.checkpoint.due, rounds=job.rounds),
            checkpoint_minutes=job.checkpoint.minutes,
        ),
        choice=None
        if not isinstance(job.cohort, PowerOfChoice)
        else Choice(
            candidates=population.participants.candidates,
            owned=owner == comm.rank,
            losses=_mean_losses(population, gradient),
            choose=population.participants.choose,
            assignment=lambda t, of: balance.of(
                t, of.members, population.work_in(of) if steal else None
            ),
        ),
        training=Training(
            clients=population.clients,
            executor=executor,
            states=RemoteClientStates(states, training.stored_state, comm, model.device)
            if sends_states
            else states,
        ),
        comm=comm,
        uploads=_uploads(components, comm),
        full_gradients=full_gradients,
        observer=Observer(job.diagnostics, executor, full_gradients, comm),
        hooks=hooks,
        signals=signals,
        timer=RoundTimer(comm.rank, comm.size, model.device),
        clock=None if job.devices is None else SimulatedClock(),
    )


def _mean_losses(
    population: Population, gradient: Gradient
) -> Callable[[Sequence[int], Vector], Sequence[float]]:
    """From clients and a model to the mean loss over all training examples of each."""
    dataset, examples = population.dataset, population.clients.training
    meter = Meter(gradient, Scoring.of(dataset))

    def losses(clients: Sequence[int], x: Vector) -> Sequence[float]:
        sums = meter.of_clients(clients, lambda _: x, examples, metrics=False).values()
        return [own["loss"] / max(own["examples"], 1.0) for own in sums]

    return losses


def _uploads(components: Components, comm: Comm) -> Reduction:
    """The mean of the uploads."""
    algorithm, schema = components.training.algorithm, components.training.schema
    return _reduction(
        components,
        comm,
        schema.reduced,
        algorithm.unweighted,
        lambda upload: algorithm.up_bytes(schema.split_loss(upload)[0]),
    )


def _full_gradients(components: Components, comm: Comm) -> Reduction:
    """The plain mean of full gradients."""
    template = FullGradient(components.model.x0.to("meta"))
    return _reduction(components, comm, template, frozenset({"grad"}))


def _reduction(
    components: Components,
    comm: Comm,
    template: Any,
    plain: frozenset[str],
    bytes_of: Callable[[Any], int] | None = None,
) -> Reduction:
    kind = ExactReduction if components.job.reduction == "exact" else FastReduction
    return kind(comm, template, plain, components.model.x0.dtype, components.device, bytes_of)
