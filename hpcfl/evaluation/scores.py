"""Compute all scores that the ``evaluate`` section of a job names."""

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

TEST_SCORES = {"correct": "test_accuracy", "correct_top5": "test_top5_accuracy"}


class Evaluation:
    """Scores a model; the same numbers on any number of ranks."""

    def __init__(
        self,
        config: Evaluate,
        gradient: Gradient,
        dataset: Dataset,
        test_set: TestSet,
        clients: Clients,
        comm: Comm,
    ) -> None:
        self._config, self._test_set, self._clients, self._comm = config, test_set, clients, comm
        self._meter = Meter(gradient, dataset.loss)
        self._names = names(dataset.loss, dataset.classes)

    def scores(self, x: Vector) -> dict[str, float]:
        """Collective: the scores of the global model ``x``, see ``hpcfl.evaluation``."""
        config, clients, scores = self._config, self._clients, {}
        if len(self._test_set):
            scores = self._test(x)
        if config.train or config.clients:
            scores |= clients.global_scores(
                self._meter, x, self._comm, objective=config.train, accuracy=config.clients
            )
        if config.local_models:
            scores |= clients.local_model_scores(self._meter, self._comm, x.device)
        return scores

    def _test(self, x: Vector) -> dict[str, float]:
        """Collective: test_loss, and the accuracies of a classification."""
        batches = self._meter.each(x, self._test_set.batches(self._comm.rank, self._comm.size))
        columns = [[batch[name] for batch in batches] for name in self._names]
        sums = dict(zip(self._names, exact_sums(self._comm, columns, x.device), strict=True))
        scores = {"test_loss": sums["loss"] / sums["examples"]}
        for name, score in TEST_SCORES.items():
            if name in sums and sums["scored"]:
                scores[score] = sums[name] / sums["scored"]
        return scores
