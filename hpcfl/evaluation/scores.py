"""Compute all scores that the ``evaluate`` section of a job names."""

from collections.abc import Mapping

import numpy as np

from hpcfl.comm.base import Comm
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.data.base import Dataset
from hpcfl.evaluation.clients import Clients
from hpcfl.evaluation.config import Evaluate
from hpcfl.evaluation.measure import Meter, score, sum_names
from hpcfl.evaluation.metrics import names
from hpcfl.evaluation.user_metrics import load_metrics
from hpcfl.local.evaluation_set import EvaluationSet
from hpcfl.local.step import Gradient
from hpcfl.types import Vector

ACCURACIES = {"correct": "accuracy", "correct_top5": "top5_accuracy"}


class Evaluation:
    """Scores a model; the same numbers on any number of ranks.

    Args:
        config: the ``evaluate`` section.
        gradient: of the model.
        dataset: has the loss and the classes.
        sets: the test set and the validation set, by the prefixes of their scores.
        clients: this rank's.
        comm: the group of ranks.
    """

    def __init__(
        self,
        config: Evaluate,
        gradient: Gradient,
        dataset: Dataset,
        sets: Mapping[str, EvaluationSet],
        clients: Clients,
        comm: Comm,
    ) -> None:
        self._config, self._sets, self._clients, self._comm = config, sets, clients, comm
        metrics = load_metrics(config.metrics)
        self._meter = Meter(gradient, dataset.loss, dataset.classes, metrics)
        self._names = names(dataset.loss, dataset.classes)

    def scores(self, x: Vector, round: int) -> dict[str, float]:
        """Collective: the scores of the global model ``x`` after ``round`` rounds.

        ``x`` is a point as ``Gradient.predict`` takes it.

        See ``hpcfl.evaluation``.
        """
        config, clients = self._config, self._clients
        scores: dict[str, float] = {}
        for name, examples in self._sets.items():
            if len(examples):
                scores |= self._scores_on(name, examples, x)
        if config.train or config.clients:
            scores |= clients.global_scores(
                self._meter, x, self._comm, objective=config.train, accuracy=config.clients
            )
        if config.local_models:
            scores |= clients.local_model_scores(self._meter, x, self._comm)
        if config.personal:
            scores |= clients.personal_scores(self._meter, x, round, self._comm)
        return scores

    def _scores_on(self, name: str, examples: EvaluationSet, x: Vector) -> dict[str, float]:
        """Collective: NAME_loss, the accuracies of a classification, and the user's metrics."""
        batches = self._meter.each(x, examples.batches(self._comm.rank, self._comm.size))
        keys = [*self._names, *self._sums_of_metrics()]
        columns = [[batch[key] for batch in batches] for key in keys]
        sums = dict(zip(keys, exact_sums(self._comm, columns, x.device), strict=True))
        # Labels that are padding do not count; of a set of padding alone nothing is known.
        scores = {f"{name}_loss": sums["loss"] / sums["examples"]} if sums["examples"] else {}
        for count, accuracy in ACCURACIES.items():
            if count in sums and sums["scored"]:
                scores[f"{name}_{accuracy}"] = sums[count] / sums["scored"]
        for metric in self._meter.metrics:
            scores[f"{name}_{metric.name}"] = score(metric, sums)
        return scores

    def _sums_of_metrics(self) -> list[str]:
        """Collective: the names of all sums of the user's metrics.

        A rank without a batch learns from the others how many there are.

        Raises:
            BrokenRuleError: on all ranks: the batches of two ranks have different numbers of sums.
        """
        metrics = self._meter.metrics
        if not metrics:
            return []
        counts = [metric.count for metric in metrics]
        negated = [-count if count else -np.inf for count in counts]  # for the smallest
        found = self._comm.allreduce_max(np.array([*counts, *negated], dtype=np.float64))
        for metric, most, least in zip(metrics, found, -found[len(metrics) :], strict=False):
            if least < most:
                raise metric.differing(int(least), int(most), collective=True)
            metric.count = int(most)
        return [key for metric in metrics for key in sum_names(metric, metric.count)]
