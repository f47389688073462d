"""Simulate the cohorts of all rounds without training, and bound the disk space that they need."""

from itertools import chain
from pathlib import Path
from shutil import disk_usage
from typing import NamedTuple

import numpy as np
from rich.filesize import decimal

from hpcfl.clients.assignment import assign_owners, assign_trainers
from hpcfl.clients.sampling import PowerOfChoice
from hpcfl.engine.dry_round import nbytes
from hpcfl.engine.timing import SimulatedClock
from hpcfl.errors import JobError
from hpcfl.start.components.components import Components
from hpcfl.store.footprint import footprint
from hpcfl.store.row_allocator import most_bytes
from hpcfl.store.schema import StateSchema
from hpcfl.types import IntArray

FILE = 4096  # bytes of a file of a checkpoint, at most, besides its numbers
TABLE_ENTRY = 32  # bytes of a row in a row table: four int64


class ScheduleUsage(NamedTuple):
    """Counts of clients and states after all rounds, on a number of ranks.

    They follow from the seed alone.  Where losses choose the clients of a round, all its candidates
    count as seen, and as many of a rank's as there are places.
    """

    owner: IntArray
    """[N], the rank of every client."""
    visits: int
    """The sum of the sizes of all cohorts."""
    asked: int
    """The sum of the clients that are asked; 0 without devices."""
    simulated_s: float
    """The simulated time of all rounds; 0 without devices."""
    seen: IntArray
    """[ranks], clients that take part at least once."""
    most_owned: IntArray
    """[ranks], the most clients of one cohort, or group, that the rank owns."""
    most_between: IntArray
    """[ranks], the most of its clients that take part between two checkpoints that are due."""


class DiskBudget(NamedTuple):
    """The bytes that a run directory takes at most, without logs and events."""

    stores: int
    """The segments of all ranks."""
    checkpoint: int
    """One checkpoint, without the states."""
    checkpoints: int
    """The number of checkpoints at a time."""
    model: int
    """The initial model."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.stores + self.checkpoints * self.checkpoint + self.model


def check_clients(components: Components, usage: ScheduleUsage) -> None:
    """Refuse cohorts that are all empty, unless a warm start trains.

    Raises:
        JobError: they are.
    """
    devices = components.job.devices
    if not components.job.rounds or usage.visits or components.population.warm_start_groups:
        return
    if devices is None:
        raise JobError("cohort: none of the rounds has a client; raise cohort.p, or rounds")
    if not usage.asked:
        raise JobError(
            "devices.available: none of the rounds has a client that is available and in its "
            "cohort; raise devices.available, the cohorts, or rounds"
        )
    if isinstance(components.job.cohort, PowerOfChoice):
        return  # who answers depends on the losses
    fastest = float(components.population.participants.typical().min())
    if devices.deadline_s is not None and fastest > devices.deadline_s:
        raise JobError(
            f"devices.deadline_s: found {devices.deadline_s:g}, but the fastest client takes "
            f"{fastest:.4g} s; raise it, or make clients faster"
        )
    raise JobError(
        f"devices: none of the {usage.asked} clients that the rounds ask answers in time; lower "
        "devices.fails, or raise devices.deadline_s or rounds"
    )


def check_disk_space(needed: DiskBudget, folder: Path) -> None:
    """Refuse a run directory on a disk that is too small.

    Raises:
        JobError: the disk has less space free than the run needs.
    """
    # Of the disk alone, not of a quota, which no call tells on every file system.
    free = disk_usage(folder).free
    if needed.total > free:
        raise JobError(
            f"{folder}: the disk is too small: the run needs {decimal(needed.total)} "
            f"({decimal(needed.stores)} of client states, {needed.checkpoints} checkpoints of "
            f"{decimal(needed.checkpoint)} besides), found {decimal(free)} free; make room, choose "
            "another disk with --out, or lower checkpoint.keep"
        )


def simulate_schedule(components: Components, ranks: int) -> ScheduleUsage:
    """Draw every cohort.

    Raises:
        JobError: there are more ranks than clients.
    """
    job, population = components.job, components.population
    count, owner = len(population.rows), assign_owners(population.clients.examples, ranks)
    visits, asked, clock = 0, 0, SimulatedClock()
    most, between = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    seen, recent = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for members in population.warm_start_groups:
        seen[members] = recent[members] = True
        most = np.maximum(most, np.bincount(owner[members], minlength=ranks))
    for t in range(job.rounds):
        participation = population.participation(t)
        if participation.wait is not None:
            clock.pass_round(participation.wait)
            asked += participation.wait.asked
        visits += len(participation.members)
        members = population.possible(t)
        seen[members] = recent[members] = True
        owned = np.minimum(np.bincount(owner[members], minlength=ranks), population.places)
        most = np.maximum(most, owned)
        if job.checkpoint.due(t + 1, job.rounds):
            between = np.maximum(between, np.bincount(owner[recent], minlength=ranks))
            recent[:] = False
    return ScheduleUsage(
        owner,
        visits,
        asked,
        clock.seconds,
        np.bincount(owner[seen], minlength=ranks),
        most,
        between,
    )


def most_trained(components: Components, usage: ScheduleUsage) -> IntArray:
    """[ranks], the most clients of one cohort, or group of the warm start, that the rank trains."""
    job, population, ranks = components.job, components.population, len(usage.most_owned)
    if job.balance == "owner":
        return usage.most_owned
    if population.places < len(population.rows):  # any of a round's members may come to a rank
        return np.full(ranks, population.places)
    most = np.zeros(ranks, np.int64)
    examples = np.array(population.clients.examples, dtype=np.int64)
    rounds = (population.participation(t) for t in range(job.rounds))
    cohorts = ((each.members, population.work_in(each)) for each in rounds)
    groups = ((members, examples[members]) for members in population.warm_start_groups)
    for members, sizes in chain(groups, cohorts):
        trainer = assign_trainers(usage.owner[members], sizes, ranks)
        most = np.maximum(most, np.bincount(trainer, minlength=ranks))
    return most


def disk_budget(components: Components, usage: ScheduleUsage) -> DiskBudget:
    """Bound the disk space of a run by its simulated schedule."""
    job, vector = components.job, nbytes(components.training.schema.message.x)
    parts = [part for part in _parts(components) if part.fields]
    tables = len(usage.most_owned) * max(1, len(parts))  # also where no state is kept
    entries = int(usage.seen.sum()) * len(parts)
    return DiskBudget(
        stores=int(store_bytes(components, usage).sum()),
        checkpoint=nbytes(components.training.schema.server)
        + job.evaluate.best * vector
        + TABLE_ENTRY * entries
        + FILE * (tables + job.evaluate.best + 2),  # server.safetensors, manifest.json
        # An old one is deleted after the commit.
        checkpoints=min(job.checkpoint.keep, -(-job.rounds // job.checkpoint.every)) + 1,
        model=nbytes(components.model.x0),
    )


def store_bytes(components: Components, usage: ScheduleUsage) -> IntArray:
    """[ranks], bytes of the stores on the disk, at most.

    A client holds one row.  What is replaced after a checkpoint that is kept stays on the disk: in
    the intervals between these, that of the pending one, and the one whose rounds have begun.
    """
    job, seen = components.job, usage.seen
    clients = np.bincount(usage.owner, minlength=len(seen))
    total = np.zeros_like(seen)
    for part, held, replaced in zip(
        _parts(components),
        (seen, _shared_rows(components, seen)),
        (usage.most_between, np.full_like(seen, job.checkpoint.every)),
        strict=True,
    ):
        rows = held + (job.checkpoint.keep + 1) * np.minimum(held, replaced)
        sizes = zip(rows.tolist(), clients.tolist(), strict=True)
        if part.fields:
            total += [most_bytes(count, own, part.bytes) for count, own in sizes]
    return total


def state_bytes(components: Components, usage: ScheduleUsage) -> IntArray:
    """[ranks], bytes of memory of the states that the clients have at the end, at most."""
    pinned = "cuda" in (components.job.device, components.device.type)
    own, shared = (
        footprint(part, pinned=pinned) if part.fields else 0 for part in _parts(components)
    )
    return usage.seen * own + _shared_rows(components, usage.seen) * shared


def _parts(components: Components) -> tuple[StateSchema, StateSchema]:
    """The clients' own part of their states, and the one that those of a round share."""
    return components.training.stored_state.own, components.training.stored_state.shared


def _shared_rows(components: Components, seen: IntArray) -> IntArray:
    """[ranks], the shared parts that differ: one a round in which the rank has a client."""
    return np.minimum(seen, components.job.rounds + len(components.population.warm_start_groups))
