"""How long a round takes on so many ranks, from the pieces and from the cohorts that are drawn.

A rank r that trains the clients C_r of a round, of P numbers each and states of B bytes, takes

    work_r = sum over C_r of (steps step_s + visit_s + B / read + B / write + P convert_s)

and a round, on R ranks,

    max over r of work_r  +  round_s + P restore_s  +  2 sums of ceil(log2 R) 2 latency_s
                          +  2 (R - 1) / R x 8 P / bandwidth

An all-reduce costs 2 ceil(log2 R) messages (up a tree and down) and sends the vector of int64 twice
but for a rank's own part (reduce-scatter and all-gather), which no algorithm can do with less.  A
round has two, a small one and that of the sum.  The evaluation is spread: ceil(tests / R) test_s.

Left out: checkpoints, which are written behind the rounds; reading data ahead, which must keep up;
the start; ranks that wait for a slow neighbour by chance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.assemble import Parts
from hpcfl.errors import JobError
from hpcfl.placement import owners
from hpcfl.plan.pieces import Pieces
from hpcfl.plan.surveys import surveys

SAMPLED = 1000  # rounds, at most, whose cohorts are drawn


@dataclass(frozen=True)
class Work:
    """What a job asks of its ranks."""

    steps: NDArray[np.int64]
    """[N], gradients of a client's visit."""
    draw: Callable[[int], NDArray[np.int64]]
    """Round -> its cohort."""
    parameters: int
    """Numbers of an upload."""
    state: int
    """Bytes of a client's state."""
    tests: int
    """Examples of an evaluation."""
    rounds: int
    evaluations: int

    def owner(self, ranks: int) -> NDArray[np.int64]:
        """[N], the rank of every client."""
        return owners(self.steps.tolist(), ranks)


def kind(parts: Parts) -> str:
    """What a job's pieces depend on, besides the machine."""
    job, tree = parts.job, parts.loaded.tree
    executor = "block" if job.executor == "block" else "sequential"
    return (
        f"{tree['algorithm']['name']} on {tree['model']['name']} of {parts.x0.numel()} parameters, "
        f"batches of {job.local.batch_size}, {job.precision}, {executor}, {job.threads} thread(s)"
    )


class Foretold(NamedTuple):
    """Seconds of a round, means over the rounds; their sum without ``evaluate`` is a round's."""

    train: float
    """The busiest rank's visits."""
    convert: float
    """Its clients' uploads, made integers, and the mean made of them."""
    exchange: float
    """The all-reduces."""
    rest: float
    evaluate: float
    """Of one evaluation."""
    busiest: float
    """Steps of the busiest rank over the mean of all ranks."""
    hours: float
    """Of all rounds, evaluations included."""

    @property
    def round(self) -> float:
        """Without an evaluation."""
        return self.train + self.convert + self.exchange + self.rest


def work(parts: Parts) -> Work:
    """What the job of ``parts`` asks."""
    job, population = parts.job, parts.population
    steps = np.array([int(population.visit(i, 0).about.steps) for i in range(len(population))])
    whole = job.evaluate.batch_size  # a full gradient is taken in batches of so many
    examples = np.array(population.examples)
    share = surveys(parts) / job.rounds
    return Work(
        steps=steps * parts.schema.gradients + np.ceil(share * -(-examples // whole)).astype(int),
        draw=lambda t: job.cohort.draw(t, len(population), job.seed),
        parameters=sum(field.numel() for field in parts.schema.upload),
        state=parts.stored.own.bytes,
        tests=len(parts.tests()),
        rounds=job.rounds,
        evaluations=sum(job.evaluate.due(t, job.rounds) for t in range(1, job.rounds + 1)),
    )


def foretell(asked: Work, ranks: int, pieces: Pieces) -> Foretold:
    """The time of a round on so many ranks.

    Raises:
        JobError: several ranks, but the pieces know of one; or more ranks than clients.
    """
    if ranks > 1 and (pieces.latency_s is None or pieces.bandwidth is None):
        raise JobError(
            f"pieces: {ranks} ranks, but they say nothing of an all-reduce ({pieces.origin}); "
            f"say mpirun -n {ranks} hpcfl bench pieces, or give latency_s and bandwidth"
        )
    size = asked.parameters
    visit = pieces.visit_s
    visit += sum(asked.state / speed for speed in (pieces.read, pieces.write) if speed)
    owner, every = asked.owner(ranks), max(1, asked.rounds // SAMPLED)
    found = []
    for t in range(0, asked.rounds, every):
        members = asked.draw(t)
        clients = np.bincount(owner[members], minlength=ranks)
        steps = np.bincount(owner[members], weights=asked.steps[members], minlength=ranks)
        trained = steps * pieces.step_s + clients * visit
        converted = clients * size * pieces.convert_s
        last = np.argmax(trained + converted)
        mean = steps.mean() or 1.0
        found.append((trained[last], converted[last], steps[last] / mean))
    train, convert, busiest = np.mean(found, axis=0).tolist()
    exchange = 0.0
    if ranks > 1 and pieces.latency_s is not None and pieces.bandwidth is not None:
        exchange = 4 * (ranks - 1).bit_length() * pieces.latency_s
        exchange += 2 * (ranks - 1) / ranks * 8 * size / pieces.bandwidth
    convert += size * pieces.restore_s
    evaluate = ceil(asked.tests / ranks) * pieces.test_s
    one = train + convert + exchange + pieces.round_s
    hours = (asked.rounds * one + asked.evaluations * evaluate) / 3600
    return Foretold(train, convert, exchange, pieces.round_s, evaluate, busiest, hours)
