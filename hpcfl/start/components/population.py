"""The clients of a job: their examples, how much each counts, and who takes part in a round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.algorithms.base import Algorithm
from hpcfl.clients.assignment import in_groups
from hpcfl.clients.client_pool import ClientData, ClientPool, ClientTests
from hpcfl.clients.devices import Participants, Visits
from hpcfl.clients.evaluation_set import EvaluationSet
from hpcfl.clients.examples import ExampleSource
from hpcfl.clients.participation import Participation
from hpcfl.clients.sampling import CohortConfig, PowerOfChoice
from hpcfl.data.base import Dataset
from hpcfl.data.partition import ExampleRows
from hpcfl.data.split import Split, tests_of_clients
from hpcfl.engine.dry_round import RoundSchema, traffic
from hpcfl.job.schema import Job
from hpcfl.types import IntArray


@dataclass(frozen=True)
class Population:
    """The simulated clients, over one copy of their examples; made by ``make_population``."""

    dataset: Dataset
    split: Split
    """Each client's training examples, and what is held out of them."""
    client_tests: ClientTests
    """The examples that each client is scored on."""
    clients: ClientPool
    weights: NDArray[np.float64]
    """[N], of every client in the mean of the uploads."""
    examples_per_round: IntArray
    """[N], the examples of a round of every client, once for each full gradient too."""
    cohort: CohortConfig
    cohort_size: int
    """Clients in a round, as many as can be expected."""
    participants: Participants
    """Who takes part in a round, by cohorts and devices."""
    participation: Callable[[int], Participation]
    """From a round to who takes part in it.  Two rounds are cached: states of the next one are
    prefetched during this one."""
    warm_start_groups: Sequence[IntArray]
    """All clients in groups of a cohort's size, where the algorithm has a warm start."""
    dtype: torch.dtype
    batch_size: int
    """Examples in a batch of an evaluation."""

    @property
    def rows(self) -> Sequence[ExampleRows]:
        """Each client's training examples."""
        return self.split.rows

    @property
    def tested_clients(self) -> int:
        """The number of clients that have examples to be scored on."""
        return sum(len(own) > 0 for own in self.client_tests.rows)

    def possible(self, round: int) -> IntArray:
        """Those who may take part in a round; where losses choose, its candidates."""
        if isinstance(self.cohort, PowerOfChoice):
            return self.participants.candidates(round)
        members: IntArray = self.participation(round).members
        return members

    @property
    def places(self) -> int:
        """How many of those who may take part in a round do, at most."""
        cohort = self.cohort
        return cohort.size if isinstance(cohort, PowerOfChoice) else len(self.rows)

    def work_in(self, participation: Participation) -> IntArray:
        """[K], the ``examples_per_round`` of each client that takes part.

        Without those of the local steps that it leaves out to meet a deadline.
        """
        members, steps, _ = participation
        less = np.zeros(len(members), dtype=np.int64)
        for client, taken in steps.items():
            less[np.searchsorted(members, client)] = self.clients.examples_in(
                client, None
            ) - self.clients.examples_in(client, taken)
        work: IntArray = self.examples_per_round[members] - less
        return work

    def tests(self, batch_size: int | None = None) -> EvaluationSet:
        """The test set, in batches of the job's size or another one."""
        size = 0 if self.dataset.test is None else len(self.dataset.test.labels)
        return self._evaluation_set(size, None, lambda: self.clients.test_source, batch_size)

    def validation(self) -> EvaluationSet:
        """The validation set, empty where the job keeps none."""
        rows = self.split.validation
        size = 0 if rows is None else len(rows)
        return self._evaluation_set(size, rows, lambda: self.clients.train_source)

    def _evaluation_set(
        self,
        size: int,
        rows: ExampleRows | None,
        source: Callable[[], ExampleSource],
        batch_size: int | None = None,
    ) -> EvaluationSet:
        return EvaluationSet(
            size,
            rows,
            source,
            self.dataset.transform,
            batch_size=batch_size or self.batch_size,
            dtype=self.dtype,
        )


def make_population(
    job: Job,
    dataset: Dataset,
    split: Split,
    algorithm: Algorithm,
    schema: RoundSchema,
    dtype: torch.dtype,
    device: torch.device,
) -> Population:
    """Make the clients of a job.

    Args:
        job: with its defaults resolved.
        dataset: of the job.
        split: of its examples.
        algorithm: of the job, which says what a client receives and sends.
        schema: of its rounds.
        dtype: of the inputs.
        device: of the batches.

    Raises:
        JobError, DataError: the data, or a trace of devices, do not fit the job.
    """
    tests = _client_tests(job, dataset, split)
    clients = ClientPool(
        ClientData(dataset, split.rows, tests, split.own_validation),
        job.local,
        local_lr=job.lr_of_step,
        seed=job.seed,
        dtype=dtype,
        device=device,
        full_batch=job.evaluate.batch_size,
        count_labels=dataset.classes if algorithm.needs_label_counts else None,
    )
    sizes = np.array(clients.examples, dtype=np.int64)
    weights = np.ones(len(sizes)) if job.weights != "examples" else sizes.astype(np.float64)
    each, before, bytes_ = schema.gradients, schema.points * sizes, traffic(algorithm, schema)
    visits = Visits(
        bytes_.down,
        bytes_.up,
        clients.steps_per_round,
        each * clients.examples_per_round + before,
        lambda client, steps: each * clients.examples_in(client, steps) + int(before[client]),
    )
    participants = Participants(job.cohort, job.devices, len(clients), job.seed, visits, weights)
    expected = max(1, round(job.cohort.participation(len(sizes)) * len(sizes)))
    return Population(
        dataset=dataset,
        split=split,
        client_tests=tests,
        clients=clients,
        weights=weights,
        examples_per_round=clients.examples_per_round + before,
        cohort=job.cohort,
        cohort_size=expected,
        participants=participants,
        participation=lru_cache(2)(participants),
        warm_start_groups=in_groups(len(sizes), expected) if algorithm.warm_start else [],
        dtype=dtype,
        batch_size=job.evaluate.batch_size,
    )


def _client_tests(job: Job, dataset: Dataset, split: Split) -> ClientTests:
    """What the clients hold out, else test examples of their own, else what they train on."""
    if split.held_out is not None:
        return ClientTests("holdout", split.held_out)
    own = tests_of_clients(job.data, dataset, split, job.seed)
    return ClientTests("train", split.rows) if own is None else ClientTests("test", own)
