"""How a job trains: its algorithm, what the algorithm keeps and sends, and the local optimiser."""

from dataclasses import dataclass

import torch

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.optim import Descent
from hpcfl.engine.dry_round import RoundSchema, dry_round
from hpcfl.engine.hook_rules import hook_advice
from hpcfl.engine.statistics import WithStatistics
from hpcfl.errors import as_job_error
from hpcfl.job.resolve import carried_statistics
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.start.components.model import Model
from hpcfl.store.schema import StateSchema
from hpcfl.types import Vector


@dataclass(frozen=True)
class Training:
    """The algorithm and the optimiser of a job; made by ``make_training``."""

    algorithm: Algorithm
    """With its defaults resolved, and with running statistics if rounds move any."""
    schema: RoundSchema
    """The form of its messages, uploads and states."""
    stored_state: StateSchema
    """The shape of a client's state in its store."""
    descent: Descent
    """The optimiser of the local steps."""


def make_training(loaded: LoadedJob, model: Model) -> Training:
    """Do the dry round of an algorithm whose defaults are resolved.

    Raises:
        JobError: it fails.
    """
    job, x0, descent = loaded.job, model.x0, loaded.job.local.descent(model.layout)
    algorithm = with_statistics(job, job.algorithm, model.initial_statistics)
    name = f"algorithm.name: {loaded.names['algorithm']}"
    with as_job_error(name, "its dry round failed", "", job.algorithm, advice=hook_advice):
        schema = dry_round(algorithm, x0.numel(), x0.dtype, descent)
    return Training(algorithm, schema, stored(job, schema), descent)


def with_statistics(job: Job, algorithm: Algorithm, initial: Vector | None) -> Algorithm:
    """The algorithm, with running statistics [Q] as the job has them, if rounds move any."""
    carried = carried_statistics(job)
    if initial is None or carried is None:
        return algorithm
    return WithStatistics(algorithm, initial, carried)


def stored(job: Job, schema: RoundSchema) -> StateSchema:
    """The shape of a client's state in its store."""
    dtype = job.store.dtype
    return (
        schema.client_state
        if dtype is None
        else schema.client_state.narrowed(getattr(torch, dtype))
    )
