"""Simulate the cohorts of all rounds without training, to find the disk space they need."""

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.cohort.assignment import assign_owners, assign_trainers
from hpcfl.runner.components import Components
from hpcfl.store.disk_usage import DiskUsage
from hpcfl.types import IntArray


class ScheduleUsage(NamedTuple):
    """Counts of clients and states after all rounds, on a number of ranks.

    They follow from the seed alone, as cohorts do not depend on training.
    """

    owner: IntArray
    """[N], the rank of every client."""
    visits: int
    """The sum of the sizes of all cohorts."""
    last_visit: IntArray
    """[N], time of last participation: warm-start groups are 1 to G, round t (from 0) is G + t + 1;
    0: never."""
    most_owned: IntArray
    """[ranks], the most clients of one cohort, or group, that the rank owns."""
    states: tuple[DiskUsage, ...]
    """The store of the clients' own parts of their states, and that of the shared parts.

    A part without fields has no store.
    """

    @property
    def seen(self) -> IntArray:
        """[ranks], clients that take part at least once."""
        return np.bincount(self.owner[self.last_visit > 0], minlength=len(self.most_owned))

    @property
    def store_bytes(self) -> IntArray:
        """[ranks], bytes of the stores on the disk."""
        return sum((part.bytes for part in self.states), np.zeros_like(self.most_owned))

    @property
    def state_bytes(self) -> IntArray:
        """[ranks], bytes of the states that the clients have at the end."""
        return sum(
            (part.states * part.row_bytes for part in self.states), np.zeros_like(self.most_owned)
        )


def simulate_schedule(components: Components, ranks: int) -> ScheduleUsage:
    """Draw every cohort, and simulate a commit of the stores where a checkpoint is due.

    Raises:
        JobError: there are more ranks than clients.
    """
    job, population = components.job, len(components.rows)
    owner = assign_owners(components.clients.examples, ranks)
    states = tuple(
        DiskUsage(owner, ranks, part.bytes, job.checkpoint.keep, shared=common)
        for part, common in (
            (components.stored_state.own, False),
            (components.stored_state.shared, True),
        )
        if part.fields
    )
    visits, last_visit, most = 0, np.zeros(population, np.int64), np.zeros(ranks, np.int64)
    groups = components.warm_start_groups
    for g, members in enumerate(groups):
        last_visit[members] = g + 1
        most = np.maximum(most, np.bincount(owner[members], minlength=ranks))
    for t in range(job.rounds):
        members = job.cohort.draw(t, population, job.seed)
        visits += len(members)
        last_visit[members] = len(groups) + t + 1
        most = np.maximum(most, np.bincount(owner[members], minlength=ranks))
        if job.checkpoint.due(t + 1, job.rounds):
            for part in states:
                part.commit(last_visit.copy())
    for part in states:
        part.add_spare_rows(most)
    return ScheduleUsage(owner, visits, last_visit, most, states)


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


def rows_until_checkpoint(components: Components, mine: NDArray[np.bool_], done: int) -> list[int]:
    """Rows that new states need, at most, until the next checkpoint that is due.

    Checkpoints by a signal or by the clock cannot be foreseen, so the schedule does not count the
    rows that they keep; the session calls this after such a checkpoint.

    Args:
        components: of the job.
        mine: [N], whether the client is this rank's.
        done: rounds completed.

    Returns:
        For every part of the states, as in ``ScheduleUsage.states``.
    """
    job, population = components.job, len(components.rows)
    seen, rounds = np.zeros(population, np.bool_), 0
    for t in range(done, job.rounds):
        members = job.cohort.draw(t, population, job.seed)
        seen[members] = True
        rounds += bool(mine[members].any())
        if job.checkpoint.due(t + 1, job.rounds):
            break
    rows_by_part = (
        (components.stored_state.own, int((seen & mine).sum())),
        (components.stored_state.shared, rounds),
    )
    return [rows for part, rows in rows_by_part if part.fields]
