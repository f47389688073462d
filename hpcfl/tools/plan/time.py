"""Predict the time of a job on a number of ranks from rounds that were measured.

The slowest rank of a round trains for a time in proportion to its clients' examples.  On another
number of ranks its share is another one, as a run would assign the clients; an evaluation, and a
warm start, are spread over the ranks.  The mean of the uploads, and what all ranks do alike, last
as long as they did where they were measured.
"""

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.clients.assignment import assign_owners, assign_trainers
from hpcfl.start.components.components import Components
from hpcfl.tools.plan.measure import Measurement

SAMPLED = 1000  # rounds, at most, whose cohorts are drawn


class Prediction(NamedTuple):
    """Seconds of the parts of a round, averaged over the rounds of the job."""

    train: float
    """Until the slowest rank has trained its clients."""
    mean: float
    """The mean of the uploads over the ranks."""
    rest: float
    evaluate: float
    """Of one evaluation."""
    busiest: float
    """Examples of the rank that trains most over the mean of all ranks."""
    hours: float
    """Of all rounds, of the evaluations and of the warm start."""

    @property
    def round(self) -> float:
        """Without an evaluation."""
        return self.train + self.mean + self.rest


def predict(components: Components, measured: Measurement, ranks: int) -> Prediction:
    """The time of the job of ``components`` on so many ranks.

    Raises:
        JobError: there are more ranks than clients.
    """
    job = components.job
    there = _work(components, measured.ranks, (each.number for each in measured.rounds))
    example_s = median(
        each.train_s / work.max() for each, work in zip(measured.rounds, there, strict=True)
    )
    sampled = range(0, job.rounds, max(1, job.rounds // SAMPLED))
    asked = _work(components, ranks, sampled)
    most = float(np.mean([work.max() for work in asked]))
    share = measured.ranks / ranks
    found = Prediction(
        train=example_s * most,
        mean=measured.mean_s,
        rest=measured.rest_s,
        evaluate=share * measured.evaluate_s,
        busiest=most / (float(np.mean(asked)) or 1.0),
        hours=0.0,
    )
    seconds = job.rounds * found.round + job.evaluate.count(job.rounds) * found.evaluate
    return found._replace(hours=(seconds + share * measured.warm_start_s) / 3600)


def _work(components: Components, ranks: int, rounds: Iterable[int]) -> list[NDArray[np.float64]]:
    """For each of the rounds [ranks], the examples that each rank trains on.

    Of cohorts that losses choose, the first candidates stand for the chosen ones.
    """
    owner = assign_owners(components.population.clients.examples, ranks)
    found = []
    for t in rounds:
        participation = components.population.participation(t)
        work, trainer = components.population.work_in(participation), owner[participation.members]
        if components.job.balance == "steal":
            trainer = assign_trainers(trainer, work, ranks)
        found.append(np.bincount(trainer, work, ranks).astype(np.float64))
    return found
