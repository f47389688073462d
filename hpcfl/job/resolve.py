"""Resolve what of a job depends on its data and its model: the defaults of the algorithm."""

from dataclasses import replace
from sys import maxsize
from typing import Literal

from hpcfl.algorithms.facts import Facts
from hpcfl.algorithms.layout import Layout
from hpcfl.errors import JobError, as_job_error, defined
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.user_code.named_section import kind_of


def check_full_blocks(job: Job, population: int) -> None:
    """Refuse blocks that are larger than the number of clients.

    Raises:
        JobError: they are.
    """
    if job.block_size is not None and job.block_size > population:
        raise JobError(
            f"block_size: found {job.block_size}, but there are {population} clients; the "
            "places of a block that have no client take time and memory too"
        )


def resolve_algorithm(
    loaded: LoadedJob,
    population: int | None,
    classes: int | None = None,
    layout: Layout | None = None,
    statistics: str | None = None,
) -> LoadedJob:
    """Give the algorithm its facts, resolve its defaults, and check the job against them.

    Args:
        loaded: the job.
        population: the number of clients; None if only the data knows it: nothing is resolved.
        classes: of the data, if there are any and they are known.
        layout: of the model; None where it is not built.
        statistics: what rounds do with those of the model; None where they move none.

    Raises:
        JobError: the cohorts, the blocks or the algorithm do not fit the clients or the model.
    """
    job = loaded.job
    # Without the number of clients, no cohort is too large.
    job.cohort.check(population or maxsize, job.rounds)
    if job.devices is not None:
        job.devices.check(job.cohort, population or maxsize)
    if population is None:
        return loaded
    check_full_blocks(job, population)
    name = loaded.names["algorithm"]
    hook = type(job.algorithm).resolve
    with as_job_error(f"algorithm.name: {name}", "cannot resolve its defaults", defined(hook)):
        facts = facts_of(job, population, classes, layout, statistics)
        try:
            algorithm = job.algorithm.resolve(facts).with_facts(facts)
        except ValueError as e:
            raise JobError(f"algorithm.name: {name} {e}") from e
    return replace(loaded, job=replace(job, algorithm=algorithm))


def carried_statistics(job: Job) -> Literal["mean", "local"] | None:
    """What rounds do with the running statistics of a model; None: nothing, they are frozen."""
    kind = job.model.statistics or job.algorithm.statistics
    return None if kind == "frozen" else kind


def all_take_part(job: Job, population: int) -> bool:
    """Whether every client takes part in every round, with all its local steps."""
    drawn_twice = job.cohort.kind == "importance"  # and others then not at all
    everyone = job.cohort.participation(population) == 1 and not drawn_twice
    return everyone and (job.devices is None or job.devices.all_answer)


def facts_of(
    job: Job,
    population: int,
    classes: int | None,
    layout: Layout | None,
    statistics: str | None,
) -> Facts:
    """What an algorithm may know of a job."""
    local = job.local
    return Facts(
        participation=job.cohort.participation(population),
        population=population,
        cohort=job.cohort.kind,
        all_take_part=all_take_part(job, population),
        steps=local.steps,
        weights=job.weights,
        weight_decay=local.weight_decay,
        optimizer=local.optimizer if isinstance(local.optimizer, str) else local.optimizer.kind,
        momentum=local.momentum,
        nesterov=local.nesterov,
        classes=classes,
        loss=job.loss if isinstance(job.loss, str) else job.loss.kind,
        layout=layout,
        statistics=statistics,
        keep_optimizer=local.keep_optimizer,
        step_schedule=None if local.step_schedule is None else kind_of(local.step_schedule),
    )
