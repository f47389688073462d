"""The formula of docs/scale.md: the time of a round, from assumed costs and drawn cohorts.

A rank r that trains the clients C_r of a round, of P numbers each, and keeps the states, of B bytes
each, of the round's clients O_r, takes

    work_r = sum over C_r of (steps step_s + visit_s + P convert_s)
           + sum over O_r of (B / read + B / write)

and a round, on R ranks,

    max over r of work_r  +  round_s  +  P restore_s
    +  4 ceil(log2 R) latency_s  +  2 (R - 1) / R x 8 P / bandwidth
    +  [2 ceil(log2 R) latency_s  +  2 T (latency_s + B / bandwidth)]

With ``balance: owner`` C_r is O_r.  With ``steal`` C_r is what `hpcfl.clients.assignment` says, as
in a run, and the states of clients that are moved travel there and back, as the last line has it:
T is the most clients that one rank hands over or takes in.
Every client is taken to have a state by then, and an exchange to last as long as the messages of
its busiest rank.

An all-reduce costs 2 ceil(log2 R) messages (up a tree and down) and sends the vector of int64 twice
but for a rank's own part (reduce-scatter and all-gather), which no algorithm can do with less.  The
mean of a round has two all-reduces, a small one and that of the sum.  The evaluation is spread:
ceil(tests / R) test_s.

Left out: checkpoints, which are written in the background; reading data ahead, which must keep up;
the start; ranks that wait for a slow neighbour by chance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from hpcfl.clients.assignment import assign_owners, assign_trainers
from hpcfl.types import IntArray

SAMPLED = 1000  # rounds, at most, whose cohorts are drawn
MEMBERS, FEWEST = 100_000, 50  # of all those rounds; and rounds, all the same


class CostModel(NamedTuple):
    """Seconds and speeds on one rank while all of them work."""

    step_s: float
    """A local step: one batch, and the algorithm's part of it."""
    visit_s: float
    """One client in one round besides its local steps and its state."""
    round_s: float
    """Seconds of a round that do not depend on its clients: drawing the cohort, the server's
    step."""
    convert_s: float
    """The exact mean of a client's upload, per number."""
    restore_s: float
    """The exact mean of a round, per number, whatever the clients."""
    test_s: float
    """An example of an evaluation."""
    latency_s: float
    """A message between two ranks."""
    bandwidth: float
    """Bytes/s that a rank sends in an all-reduce while it receives as many."""
    read: float
    """Bytes/s of client states."""
    write: float


@dataclass(frozen=True)
class Work:
    """The work of a job, as far as its time depends on it."""

    steps: IntArray
    """[N], gradients of a client's visit."""
    draw: Callable[[int], IntArray]
    """Round -> its cohort."""
    examples: IntArray
    """[N], of every client: owners are assigned by them."""
    taken: IntArray
    """[N], positive, those that a visit goes through: trainers are assigned by them."""
    balance: Literal["owner", "steal"]
    parameters: int
    """Numbers that a client sends in a round."""
    state: int
    """Bytes of a client's state."""
    tests: int
    """Examples of an evaluation."""
    rounds: int
    evaluations: int

    def sampled(self) -> range:
        """The rounds whose cohorts are drawn."""
        size = max(1, len(self.draw(0)))
        return range(
            0, self.rounds, max(1, self.rounds // max(FEWEST, min(SAMPLED, MEMBERS // size)))
        )


class Prediction(NamedTuple):
    """Predicted seconds of one round, averaged over rounds.

    ``busiest`` is a ratio, ``hours`` covers the job.
    """

    train: float
    """The busiest rank's visits."""
    convert: float
    """Its clients' uploads, made integers, and the mean made of them."""
    exchange: float
    """The all-reduces."""
    ship: float
    """States on their way to other ranks than their clients' own, and back."""
    rest: float
    evaluate: float
    """Of one evaluation."""
    busiest: float
    """Steps of the busiest rank over the mean of all ranks."""
    hours: float
    """Of all rounds and evaluations."""

    @property
    def round(self) -> float:
        """Without an evaluation."""
        return sum((self.train, self.convert, self.exchange, self.ship, self.rest))


def predict(asked: Work, ranks: int, costs: CostModel) -> Prediction:
    """The time of a round on so many ranks.

    Raises:
        JobError: there are more ranks than clients.
    """
    owner = assign_owners(asked.examples.tolist(), ranks)
    found = [_busiest(asked, t, owner, ranks, costs) for t in asked.sampled()]
    train, convert, ship, busiest = np.mean(found, axis=0).tolist()
    size, exchange = asked.parameters, 0.0
    if ranks > 1:
        steps = (ranks - 1).bit_length()  # ceil(log2 ranks), in whole numbers
        exchange = 4 * steps * costs.latency_s
        exchange += 2 * (ranks - 1) / ranks * 8 * size / costs.bandwidth
    convert += size * costs.restore_s
    evaluate = ceil(asked.tests / ranks) * costs.test_s
    one = train + convert + exchange + ship + costs.round_s
    hours = (asked.rounds * one + asked.evaluations * evaluate) / 3600
    return Prediction(train, convert, exchange, ship, costs.round_s, evaluate, busiest, hours)


def _busiest(
    asked: Work, round: int, owner: IntArray, ranks: int, costs: CostModel
) -> tuple[float, float, float, float]:
    """Of one round: the first two of the busiest rank and ``ship``, then ``busiest``."""
    members = asked.draw(round)
    own = trainer = owner[members]
    if asked.balance == "steal":
        trainer = assign_trainers(own, asked.taken[members], ranks)
    clients = np.bincount(trainer, minlength=ranks)
    steps = np.bincount(trainer, asked.steps[members], ranks)
    trained = steps * costs.step_s + clients * costs.visit_s
    kept = asked.state / costs.read + asked.state / costs.write
    trained += np.bincount(own, minlength=ranks) * kept
    converted = clients * asked.parameters * costs.convert_s
    last = np.argmax(trained + converted)
    ship = _shipped(asked, own, trainer, ranks, costs)
    return trained[last], converted[last], ship, steps[last] / (steps.mean() or 1.0)


def _shipped(asked: Work, own: IntArray, trainer: IntArray, ranks: int, costs: CostModel) -> float:
    """Seconds of a round's states on their way there and back."""
    moved = own != trainer
    if not (moved.any() and asked.state):
        return 0.0
    most = max(np.bincount(ends[moved]).max() for ends in (own, trainer))
    each = 2 * (costs.latency_s + asked.state / costs.bandwidth)
    return float(2 * (ranks - 1).bit_length() * costs.latency_s + most * each)
