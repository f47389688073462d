"""Simulate the cohorts of all rounds without training, to find the disk space they need."""

from itertools import chain
from typing import NamedTuple

import numpy as np

from hpcfl.cohort.assignment import assign_owners, assign_trainers
from hpcfl.setup.components import Components
from hpcfl.types import IntArray


class ScheduleUsage(NamedTuple):
    """Counts of clients and states after all rounds, on a number of ranks.

    They follow from the seed alone, as cohorts do not depend on training.
    """

    owner: IntArray
    """[N], the rank of every client."""
    visits: int
    """The sum of the sizes of all cohorts."""
    seen: IntArray
    """[ranks], clients that take part at least once."""
    most_owned: IntArray
    """[ranks], the most clients of one cohort, or group, that the rank owns."""
    most_between: IntArray
    """[ranks], the most of its clients that take part between two checkpoints that are due."""


def simulate_schedule(components: Components, ranks: int) -> ScheduleUsage:
    """Draw every cohort.

    Raises:
        JobError: there are more ranks than clients.
    """
    job, population = components.job, len(components.rows)
    owner = assign_owners(components.clients.examples, ranks)
    visits, most, between = 0, np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    seen, recent = np.zeros(population, np.bool_), np.zeros(population, np.bool_)
    for members in components.warm_start_groups:
        seen[members] = recent[members] = True
        most = np.maximum(most, np.bincount(owner[members], minlength=ranks))
    for t in range(job.rounds):
        members = job.cohort.draw(t, population, job.seed)
        visits += len(members)
        seen[members] = recent[members] = True
        most = np.maximum(most, np.bincount(owner[members], minlength=ranks))
        if job.checkpoint.due(t + 1, job.rounds):
            between = np.maximum(between, np.bincount(owner[recent], minlength=ranks))
            recent[:] = False
    return ScheduleUsage(owner, visits, np.bincount(owner[seen], minlength=ranks), most, between)


def most_trained(components: Components, usage: ScheduleUsage) -> IntArray:
    """[ranks], the most clients of one cohort, or group of the warm start, that the rank trains."""
    job, ranks, work = components.job, len(usage.most_owned), components.examples_per_round
    if job.balance == "owner":
        return usage.most_owned
    most = np.zeros(ranks, np.int64)
    examples = np.array(components.clients.examples, dtype=np.int64)
    cohorts = (job.cohort.draw(t, len(components.rows), job.seed) for t in range(job.rounds))
    groups = ((members, examples) for members in components.warm_start_groups)
    for members, sizes in chain(groups, ((members, work) for members in cohorts)):
        trainer = assign_trainers(usage.owner[members], sizes[members], ranks)
        most = np.maximum(most, np.bincount(trainer, minlength=ranks))
    return most
