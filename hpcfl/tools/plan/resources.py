"""Compute the figures of a plan that need no measurement.

Sizes follow from the dry round, from the data and from the cohorts, all of which are drawn here:
they are a function of the seed.  Nothing of a resumed run is counted: on another number of ranks
its states are copied before the old ones are removed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcfl.engine.dry_round import Traffic, nbytes, traffic
from hpcfl.evaluation.privacy import Accountant, accountant
from hpcfl.start.checks.disk import (
    DiskBudget,
    disk_budget,
    most_trained,
    simulate_schedule,
    store_bytes,
)
from hpcfl.start.checks.memory import RankMemory, rank_memory
from hpcfl.start.components.components import Components


class RankShare(NamedTuple):
    """The clients, examples, disk and least memory of one rank."""

    clients: int
    examples: int
    seen: int
    """Clients that take part at least once."""
    members: int
    """Members of a cohort that it trains, at most."""
    store: int
    """Bytes of its stores at the end."""
    memory: RankMemory


@dataclass(frozen=True)
class Plan:
    """The resources that a job will need; sizes in bytes."""

    parameters: int
    vector: int
    """Size of the model."""
    population: int
    rounds: int
    visits: int
    """Sizes of all cohorts together."""
    asked: int
    """Clients that are asked in all rounds together; 0 without devices."""
    simulated_s: float
    """Simulated seconds of the run; 0 without devices."""
    steps: tuple[int, int]
    """Local steps of a client and round, least and most."""
    gradients: int
    """Gradients of a step."""
    forwards: int
    """Forward passes of a step beside them."""
    full_gradient_rounds: int
    """Rounds in which a client takes gradients over all its examples too."""
    full_gradients: int
    """Such gradients of a client in one of these rounds."""
    tests: int
    """Test examples of an evaluation."""
    validation: int
    """Validation examples of an evaluation."""
    evaluations: int
    tuning_steps: int
    """Of each tested client in an evaluation, before its own model is scored."""
    tested: int
    """The clients that are tested."""
    traffic: Traffic
    """Of a client in a round."""
    warm_start: Traffic
    """Of all clients together, before round 1."""
    choice: Traffic
    """Of the candidates of a round, besides what those of them that train receive and send."""
    candidates: int
    """Clients of a round that compute their loss on all their examples; 0: none do."""
    own: int
    """Kept for each client that was seen."""
    shared: int
    """Kept once for all clients of a rank and a round."""
    server: int
    disk_budget: DiskBudget
    """The disk space of the run directory."""
    shares: tuple[RankShare, ...]
    """One a rank."""
    accountant: Accountant | None
    """Of the privacy; None where the algorithm promises none."""

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
    def least_memory(self) -> RankMemory:
        """Of the rank that needs most."""
        return max((share.memory for share in self.shares), key=lambda each: each.total)

    @property
    def in_all(self) -> Traffic:
        """Traffic of the whole job."""
        sizes = zip(self.traffic, self.choice, self.warm_start, strict=True)
        return Traffic(
            *(self.visits * one + self.rounds * more + once for one, more, once in sizes)
        )


def plan(components: Components, ranks: int) -> Plan:
    """Compute what the job of ``components`` will need on so many ranks.

    Raises:
        JobError: there are more ranks than clients.
    """
    job, schema, population = components.job, components.training.schema, components.population
    clients = population.clients
    usage = simulate_schedule(components, ranks)
    kept = components.training.stored_state
    steps, sizes = clients.steps_per_round, np.array(clients.examples)
    diagnosed = job.rounds // job.diagnostics.every if job.diagnostics.dissimilarity else 0
    full_gradient_rounds = job.rounds if schema.points else diagnosed
    return Plan(
        parameters=components.model.x0.numel(),
        vector=nbytes(schema.message.x),
        population=len(clients),
        rounds=job.rounds,
        visits=usage.visits,
        asked=usage.asked,
        simulated_s=usage.simulated_s,
        steps=(int(steps.min()), int(steps.max())),
        gradients=schema.gradients,
        forwards=schema.forwards,
        full_gradient_rounds=full_gradient_rounds,
        full_gradients=schema.points or bool(full_gradient_rounds),
        tests=len(population.tests()),
        validation=len(population.validation()),
        evaluations=job.evaluate.count(job.rounds),
        tuning_steps=components.job.evaluate.tuning_steps,
        tested=population.tested_clients,
        traffic=traffic(components.training.algorithm, schema),
        warm_start=_warm_start_traffic(components),
        choice=_choice_traffic(components),
        candidates=_candidates(components),
        own=kept.own.bytes,
        shared=kept.shared.bytes,
        server=nbytes(schema.server),
        disk_budget=disk_budget(components, usage),
        shares=tuple(
            RankShare(int((mine := usage.owner == rank).sum()), int(sizes[mine].sum()), *figures)
            for rank, figures in enumerate(
                zip(
                    usage.seen.tolist(),
                    most_trained(components, usage).tolist(),
                    store_bytes(components, usage).tolist(),
                    rank_memory(components, usage),
                    strict=True,
                )
            )
        ),
        accountant=accountant(job.algorithm, job.cohort, len(clients), alone=job.devices is None),
    )


def _warm_start_traffic(components: Components) -> Traffic:
    """The initial model down to every client, and its full gradient up."""
    times = components.training.algorithm.warm_start * len(components.population.rows)
    return Traffic(times * _received(components), times * nbytes(components.model.x0))


def _candidates(components: Components) -> int:
    """Of power of choice; 0 of other cohorts."""
    return getattr(components.job.cohort, "candidates", 0)


def _choice_traffic(components: Components) -> Traffic:
    """The model down to the candidates that do not train, and the loss of each candidate up."""
    candidates = _candidates(components)
    return Traffic(
        max(0, candidates - components.population.places) * _received(components),
        candidates * components.model.x0.itemsize,
    )


def _received(components: Components) -> int:
    """Bytes of the model, with its running statistics."""
    statistics = components.training.schema.sent_statistics
    return nbytes(components.model.x0) + (0 if statistics is None else nbytes(statistics))
