"""Simulate the cohorts of all rounds without training, to find the disk space they need."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.cohort.assignment import assign_owners, assign_trainers
from hpcfl.runner.components import Components
from hpcfl.store.disk_usage import DiskUsage

Counts = NDArray[np.int64]


class ScheduleUsage(NamedTuple):
    """Counts of clients and states after all rounds, on a number of ranks."""

    owner: Counts
    """[N], the rank of every client."""
    visits: int
    """Sizes of all cohorts together."""
    last: Counts
    """[N], the last round of every client, 0 for none."""
    members: Counts
    """[ranks], the most clients of one cohort that the rank owns."""
    states: tuple[DiskUsage, ...]
    """The stores: of the clients' own parts of their states, of the shared; none where empty."""

    @property
    def seen(self) -> Counts:
        """[ranks], clients that take part at least once."""
        return np.bincount(self.owner[self.last > 0], minlength=len(self.members))

    @property
    def stores(self) -> Counts:
        """[ranks], bytes on the disk."""
        return sum((part.bytes for part in self.states), np.zeros_like(self.members))

    @property
    def held(self) -> Counts:
        """[ranks], bytes of the states that the clients have at the end."""
        return sum(
            (part.states * part.row_bytes for part in self.states), np.zeros_like(self.members)
        )


def simulate_schedule(components: Components, ranks: int) -> ScheduleUsage:
    """Draw every cohort, and simulate a commit of the stores where a checkpoint is due.

    Raises:
        JobError: there are more ranks than clients.
    """
    job, population = components.job, len(components.rows)
    owner = assign_owners(components.clients.examples, ranks)
    in_memory = job.store.kind == "memory"
    states = tuple(
        DiskUsage(owner, ranks, part.bytes, job.checkpoint.keep, shared=common, memory=in_memory)
        for part, common in (
            (components.stored_state.own, False),
            (components.stored_state.shared, True),
        )
        if part.fields
    )
    visits, last, most = 0, np.zeros(population, np.int64), np.zeros(ranks, np.int64)
    for t in range(job.rounds):
        members = job.cohort.draw(t, population, job.seed)
        visits += len(members)
        last[members] = t + 1
        most = np.maximum(most, np.bincount(owner[members], minlength=ranks))
        if job.checkpoint.due(t + 1, job.rounds):
            for part in states:
                part.commit(last.copy())
    for part in states:
        part.add_spare_rows(most)
    return ScheduleUsage(owner, visits, last, most, states)


def trained(components: Components, usage: ScheduleUsage) -> Counts:
    """[ranks], the most clients of one cohort that the rank trains."""
    job, ranks, work = components.job, len(usage.members), components.examples_per_round
    if job.balance == "owner":
        return usage.members
    most = np.zeros(ranks, np.int64)
    for t in range(job.rounds):
        members = job.cohort.draw(t, len(components.rows), job.seed)
        trainer = assign_trainers(usage.owner[members], work[members], ranks)
        most = np.maximum(most, np.bincount(trainer, minlength=ranks))
    return most


def rows_until_checkpoint(components: Components, mine: NDArray[np.bool_], done: int) -> list[int]:
    """Rows that new states may take until the next checkpoint that is due.

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
    found = (
        (components.stored_state.own, int((seen & mine).sum())),
        (components.stored_state.shared, rounds),
    )
    return [rows for part, rows in found if part.fields]


def state_bytes(components: Components) -> tuple[int, int]:
    """Bytes of a client's own part of its state, and of the part that clients share."""
    return components.stored_state.own.bytes, components.stored_state.shared.bytes
