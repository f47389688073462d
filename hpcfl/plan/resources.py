"""Compute the figures of a plan.

Sizes follow from the dry round, from the data and from the cohorts, all of which are drawn here:
they are a function of the seed.  Nothing of a resumed run is counted: on another number of ranks
its states are copied before the old ones are removed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcfl.engine.schema import Traffic, nbytes, traffic
from hpcfl.plan.full_gradient_rounds import full_gradient_rounds
from hpcfl.plan.measured import Activations, Process
from hpcfl.plan.memory import Holding, Memory, memory
from hpcfl.runner.components import Components
from hpcfl.runner.disk_budget import DiskBudget, disk_budget
from hpcfl.runner.schedule import ScheduleUsage, simulate_schedule, state_bytes, trained


class RankShare(NamedTuple):
    """What falls to one rank."""

    clients: int
    examples: int
    seen: int
    """Clients that take part at least once."""
    members: int
    """Members of a cohort that it trains, at most."""
    store: int
    """Bytes of its stores at the end."""
    memory: Memory


@dataclass(frozen=True)
class Plan:
    """What a job will need; sizes in bytes."""

    parameters: int
    vector: int
    """Size of the model."""
    population: int
    rounds: int
    visits: int
    """Sizes of all cohorts together."""
    steps: tuple[int, int]
    """Local steps of a client and round, least and most."""
    gradients: int
    """Gradients of a step."""
    full_gradient_rounds: int
    """Rounds in which a client takes a gradient over all its examples too."""
    traffic: Traffic
    counted: str
    """How a paper counts the traffic, where it counts otherwise."""
    own: int
    """Kept for each client that was seen."""
    shared: int
    """Kept once for all clients of a rank and a round."""
    server: int
    disk_budget: DiskBudget
    """What the run directory will take."""
    shares: tuple[RankShare, ...]
    """One a rank."""

    @property
    def overhead(self) -> float:
        """Traffic as a multiple of FedAvg's, which sends the model down and up."""
        return sum(self.traffic) / (2 * self.vector)

    @property
    def cohort(self) -> float:
        """Mean size of a cohort."""
        return self.visits / self.rounds

    @property
    def seen(self) -> int:
        """Clients that take part at least once."""
        return sum(share.seen for share in self.shares)

    @property
    def in_all(self) -> Traffic:
        """Traffic of the whole job."""
        return Traffic(*(self.visits * size for size in self.traffic))


def plan(parts: Components, ranks: int, *, process: Process, activations: Activations) -> Plan:
    """What the job of ``parts`` will need on so many ranks.

    Args:
        parts: the job, loaded.
        ranks: how many.
        process: one that has loaded the job and taken a gradient.
        activations: what ``probe`` says.

    Raises:
        JobError: there are more ranks than clients.
    """
    job, schema, population = parts.job, parts.schema, parts.clients
    played = simulate_schedule(parts, ranks)
    own, shared = state_bytes(parts)
    steps = [int(population.task(i, 0).client.steps) for i in range(len(population))]
    return Plan(
        parameters=parts.x0.numel(),
        vector=nbytes(schema.message.x),
        population=len(population),
        rounds=job.rounds,
        visits=played.visits,
        steps=(min(steps), max(steps)),
        gradients=schema.gradients,
        full_gradient_rounds=full_gradient_rounds(parts),
        traffic=traffic(parts.algorithm, schema),
        counted=parts.algorithm.traffic_note,
        own=own,
        shared=shared,
        server=nbytes(schema.server),
        disk_budget=disk_budget(parts, played),
        shares=tuple(
            _share(parts, played, rank, int(members), process, activations)
            for rank, members in enumerate(trained(parts, played))
        ),
    )


def _share(
    parts: Components,
    played: ScheduleUsage,
    rank: int,
    members: int,
    process: Process,
    activations: Activations,
) -> RankShare:
    """What falls to this rank."""
    mine = played.owner == rank
    seen = int(played.seen[rank])
    holding = Holding(rank, seen, members, int(played.held[rank]))
    return RankShare(
        clients=int(mine.sum()),
        examples=int(np.array(parts.clients.examples)[mine].sum()),
        seen=seen,
        members=members,
        store=int(played.stores[rank]),
        memory=memory(parts, holding, process=process, activations=activations),
    )
