"""Compute all scores that a job asks for."""

from hpcfl.comm.base import Comm
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.data.base import Dataset
from hpcfl.evaluation.clients import Clients
from hpcfl.evaluation.config import Evaluate
from hpcfl.evaluation.measure import Meter
from hpcfl.evaluation.metrics import names
from hpcfl.local.step import Gradient
from hpcfl.local.test_set import TestSet
from hpcfl.types import Vector

TESTED = {"correct": "test_accuracy", "correct_top5": "test_top5_accuracy"}


class Evaluation:
    """Scores a model; the same numbers on any number of ranks."""

    def __init__(
        self,
        asked: Evaluate,
        gradient: Gradient,
        dataset: Dataset,
        tests: TestSet,
        clients: Clients,
        comm: Comm,
    ) -> None:
        self._asked, self._tests, self._clients, self._comm = asked, tests, clients, comm
        self._meter = Meter(gradient, dataset.loss)
        self._names = names(dataset.loss, dataset.classes)

    def scores(self, x: Vector) -> dict[str, float]:
        """Collective: what the job asks for, see ``hpcfl.evaluation``."""
        asked, clients, scores = self._asked, self._clients, {}
        if len(self._tests):
            scores = self._test(x)
        if asked.train or asked.clients:
            scores |= clients.shared(
                self._meter, x, self._comm, objective=asked.train, accuracy=asked.clients
            )
        if asked.own:
            scores |= clients.own(self._meter, self._comm, x.device)
        return scores

    def _test(self, x: Vector) -> dict[str, float]:
        """Collective: test_loss, and of a classification the accuracies."""
        found = self._meter.each(x, self._tests.batches(self._comm.rank, self._comm.size))
        columns = [[batch[name] for batch in found] for name in self._names]
        sums = dict(zip(self._names, exact_sums(self._comm, columns, x.device), strict=True))
        scores = {"test_loss": sums["loss"] / sums["examples"]}
        for name, score in TESTED.items():
            if name in sums and sums["scored"]:
                scores[score] = sums[name] / sums["scored"]
        return scores
