"""Predict the time of a round on a number of ranks, from the costs and the cohorts.

A rank r that trains the clients C_r of a round, of P numbers each, and keeps the states, of B bytes
each, of the round's clients O_r, takes

    work_r = sum over C_r of (steps step_s + visit_s + P convert_s)
           + sum over O_r of (B / read + B / write)

and a round, on R ranks,

    max over r of work_r  +  round_s  +  P restore_s
    +  4 M ceil(log2 R) latency_s  +  2 (R - 1) / R x 8 P / bandwidth
    +  [2 ceil(log2 R) latency_s  +  T (2 latency_s + (S + B) / bandwidth)]

With ``balance: owner`` C_r is O_r.  With ``steal`` C_r is what `hpcfl.cohort.assignment` says, as
in a run, and the states of clients that are moved travel, as the last line has it: T is the most
clients that one rank hands over or takes in, S the bytes there (what clients share goes along), B
those back.
Every client is taken to have a state by then, and an exchange to last as long as the messages of
its busiest rank.

An all-reduce costs 2 ceil(log2 R) messages (up a tree and down) and sends the vector of int64 twice
but for a rank's own part (reduce-scatter and all-gather), which no algorithm can do with less.  A
round takes M means: of its uploads, and of full gradients where the server has them (P counts the
numbers of all).  A mean has two all-reduces, a small one and that of the sum.  The evaluation is
spread: ceil(tests / R) test_s; and with fine-tuning of k steps ceil(N / R) (k step_s + visit_s).
Where clients are chosen by their losses, the examples of the candidates that the busiest rank owns
take test_s each, and the losses a small all-reduce; the first candidates stand for the chosen ones.

Left out: checkpoints, which are written in the background; reading data ahead, which must keep up;
the start; ranks that wait for a slow neighbour by chance.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from hpcfl.cohort.assignment import assign_owners, assign_trainers
from hpcfl.cohort.sampling import PowerOfChoice
from hpcfl.errors import JobError
from hpcfl.plan.full_gradients import full_gradient_means, full_gradient_rounds, full_gradients
from hpcfl.setup.components import Components
from hpcfl.types import IntArray


class CostModel(NamedTuple):
    """Seconds and speeds on one rank while all of them work."""

    origin: str
    """The measurement and its date, or the reason why they are assumed."""
    device: Literal["cpu", "cuda"]
    """The device of a rank."""
    step_s: float
    """A local step: one batch, and the algorithm's part of it."""
    visit_s: float
    """Seconds of one client in one round besides its local steps: making its batches, and state
    I/O if ``read`` and ``write`` are absent."""
    round_s: float
    """Seconds of a round that do not depend on its clients: drawing the cohort, the server's
    step."""
    convert_s: float
    """The exact mean of a client's upload, per number."""
    restore_s: float
    """The exact mean of a round, per number, whatever the clients."""
    test_s: float
    """An example of an evaluation."""
    latency_s: float | None = None
    """A message between two ranks; None: measured on one rank."""
    bandwidth: float | None = None
    """Bytes/s that a rank sends in an all-reduce while it receives as many; None as above."""
    read: float | None = None
    """Bytes/s of client states; None: part of ``visit_s``."""
    write: float | None = None


SAMPLED = 1000  # rounds, at most, whose cohorts are drawn
MEMBERS, FEWEST = 100_000, 50  # of all those rounds; and rounds, all the same


@dataclass(frozen=True)
class Work:
    """The work of a job, as far as its time depends on it."""

    steps: IntArray
    """[N], gradients of a client's visit; a full one counts as the steps of a pass over all its
    examples."""
    draw: Callable[[int], IntArray]
    """Round -> its cohort."""
    examples: IntArray
    """[N], of every client: owners are assigned by them."""
    taken: IntArray
    """[N], positive, those that a visit goes through: trainers are assigned by them."""
    balance: Literal["owner", "steal"]
    parameters: int
    """Numbers that a client sends in a round: its upload, and full gradients."""
    means: int
    """Means that a round takes: of the uploads, and of the full gradients at each point."""
    state: int
    """Bytes of a client's own state."""
    sent: int
    """Bytes of a state that is sent to another rank, with the part that clients share."""
    tests: int
    """Examples of an evaluation."""
    rounds: int
    evaluations: int
    tuning_steps: int = 0
    """Of each tested client in an evaluation, before its own model is scored."""
    tested: int = 0
    """The clients that are tested."""
    candidates: Callable[[int], IntArray] | None = None
    """Round -> the clients that compute their loss on all their examples; None: none do."""
    warm_start: "Work | None" = None
    """The work of the pass over all clients before round 1, whose rounds are its groups."""
    left_out: Callable[[int], tuple[IntArray, IntArray]] | None = None
    """Round -> [K], gradients and examples that its clients leave out; None: none are left out."""

    def in_round(self, round: int) -> tuple[IntArray, IntArray, IntArray]:
        """The cohort [K] of a round, its gradients and its examples."""
        members = self.draw(round)
        steps, taken = self.steps[members], self.taken[members]
        if self.left_out is not None:
            of_steps, of_taken = self.left_out(round)
            steps, taken = steps - of_steps, taken - of_taken
        return members, steps, taken

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
    choose: float
    """The candidates' losses."""
    rest: float
    evaluate: float
    """Of one evaluation."""
    busiest: float
    """Steps of the busiest rank over the mean of all ranks."""
    hours: float
    """Of all rounds, evaluations and the warm start included."""

    @property
    def round(self) -> float:
        """Without an evaluation."""
        return sum((self.train, self.convert, self.exchange, self.ship, self.choose, self.rest))


def work(components: Components) -> Work:
    """The work of the job of ``components``."""
    job, population = components.job, components.clients
    examples = np.array(population.examples)
    # The local steps of one pass over a client's examples, as which a full gradient counts.
    passes = examples * population.steps_per_round / population.examples_per_round
    share = full_gradients(components) * full_gradient_rounds(components) / job.rounds
    means = full_gradient_means(components)

    def left_out(round: int) -> tuple[IntArray, IntArray]:
        steps, examples = components.left_out(components.participation(round))
        return steps * components.schema.gradients, examples

    found = Work(
        steps=population.steps_per_round * components.schema.gradients
        + np.ceil(share * passes).astype(int),
        draw=lambda t: components.participation(t).members,
        examples=examples,
        taken=components.examples_per_round,
        balance=job.balance,
        parameters=sum(field.numel() for field in components.schema.upload)
        + means * components.x0.numel(),
        means=1 + means,
        state=components.stored_state.own.bytes,
        sent=components.stored_state.bytes,
        tests=_evaluated(components),
        rounds=job.rounds,
        evaluations=job.evaluate.count(job.rounds),
        tuning_steps=components.tuning_steps,
        tested=components.tested_clients,
        candidates=components.possible if isinstance(job.cohort, PowerOfChoice) else None,
        left_out=None if job.devices is None else left_out,
    )
    groups = components.warm_start_groups
    if not groups:
        return found
    once = replace(
        found,
        steps=np.ceil(passes).astype(int),
        draw=groups.__getitem__,
        taken=examples,
        parameters=components.x0.numel(),
        means=1,
        rounds=len(groups),
        evaluations=0,
        candidates=None,
        left_out=None,
    )
    return replace(found, warm_start=once)


def _evaluated(components: Components) -> int:
    """Examples of an evaluation, as `hpcfl.evaluation` has them; every client has its models."""
    evaluate, (data, rows) = components.job.evaluate, components.client_tests
    own = sum(map(len, rows))
    count = len(components.tests()) + len(components.validation())
    if evaluate.train or (evaluate.clients and data == "train"):
        count += sum(map(len, components.rows))
    if evaluate.clients and data != "train":
        count += own
    if evaluate.personal:
        count += sum(map(len, components.split.own_validation or ()))
    return count + own * (evaluate.local_models + bool(evaluate.personal))


def predict(asked: Work, ranks: int, costs: CostModel) -> Prediction:
    """The time of a round on so many ranks.

    Raises:
        JobError: several ranks, but the costs know of one; or more ranks than clients.
    """
    if ranks > 1 and (costs.latency_s is None or costs.bandwidth is None):
        raise JobError(
            f"plan: found {ranks} ranks, but costs that say nothing of an all-reduce "
            f"({costs.origin}); say mpirun -n 2 hpcfl plan JOB --ranks {ranks} --measure"
        )
    owner = assign_owners(asked.examples.tolist(), ranks)
    found = [_busiest(asked, t, owner, ranks, costs) for t in asked.sampled()]
    train, convert, ship, busiest = np.mean(found, axis=0).tolist()
    size, exchange, choose = asked.parameters, 0.0, 0.0
    if asked.candidates is not None:
        lost = (asked.candidates(t) for t in asked.sampled())
        most = [np.bincount(owner[them], asked.examples[them], ranks).max() for them in lost]
        choose = float(np.mean(most)) * costs.test_s
        choose += 2 * (ranks - 1).bit_length() * (costs.latency_s or 0.0)
    if ranks > 1 and costs.latency_s is not None and costs.bandwidth is not None:
        steps = (ranks - 1).bit_length()  # ceil(log2 ranks), in whole numbers
        exchange = 4 * asked.means * steps * costs.latency_s
        exchange += 2 * (ranks - 1) / ranks * 8 * size / costs.bandwidth
    convert += size * costs.restore_s
    evaluate = ceil(asked.tests / ranks) * costs.test_s
    if asked.tuning_steps:
        each = asked.tuning_steps * costs.step_s + costs.visit_s
        evaluate += ceil(asked.tested / ranks) * each
    one = train + convert + exchange + ship + choose + costs.round_s
    hours = (asked.rounds * one + asked.evaluations * evaluate) / 3600
    if asked.warm_start is not None:
        once = replace(asked.warm_start, balance=asked.balance)
        hours += predict(once, ranks, costs).hours
    return Prediction(
        train, convert, exchange, ship, choose, costs.round_s, evaluate, busiest, hours
    )


def _busiest(
    asked: Work, round: int, owner: IntArray, ranks: int, costs: CostModel
) -> tuple[float, float, float, float]:
    """Of one round: the first two of the busiest rank and ``ship``, then ``busiest``."""
    members, of_members, taken = asked.in_round(round)
    own = trainer = owner[members]
    if asked.balance == "steal":
        trainer = assign_trainers(own, taken, ranks)
    clients = np.bincount(trainer, minlength=ranks)
    steps = np.bincount(trainer, of_members, ranks)
    state = sum(asked.state / speed for speed in (costs.read, costs.write) if speed)
    trained = steps * costs.step_s + clients * costs.visit_s
    trained += np.bincount(own, minlength=ranks) * state
    converted = clients * asked.parameters * costs.convert_s
    last = np.argmax(trained + converted)
    ship = _shipped(asked, own, trainer, ranks, costs)
    return trained[last], converted[last], ship, steps[last] / (steps.mean() or 1.0)


def _shipped(asked: Work, own: IntArray, trainer: IntArray, ranks: int, costs: CostModel) -> float:
    """Seconds of a round's states on their way there and back."""
    moved = own != trainer
    if not (moved.any() and asked.sent and costs.bandwidth):
        return 0.0
    most = max(np.bincount(ends[moved]).max() for ends in (own, trainer))
    latency = costs.latency_s or 0.0
    each = 2 * latency + (asked.sent + asked.state) / costs.bandwidth
    return float(2 * (ranks - 1).bit_length() * latency + most * each)
