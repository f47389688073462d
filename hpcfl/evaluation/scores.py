"""Compute all scores that the ``evaluate`` section of a job names."""

import math
from collections.abc import Callable, Mapping, Sequence

from hpcfl.clients.evaluation_set import EvaluationSet
from hpcfl.comm.base import Comm
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.data.base import Dataset
from hpcfl.evaluation.client_rows import ClientRows
from hpcfl.evaluation.clients import Clients
from hpcfl.evaluation.config import Evaluate
from hpcfl.evaluation.f1 import F1
from hpcfl.evaluation.measure import Meter, sum_names
from hpcfl.evaluation.metrics import Scoring
from hpcfl.evaluation.user_metrics import UserMetric, agree, load_metrics
from hpcfl.local.gradient import Gradient
from hpcfl.runs.client_table import ClientRow
from hpcfl.runs.score_names import PERPLEXITIES
from hpcfl.types import LossName, Vector

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
        write_rows: gets the rows of ``evaluate.clients: table``, on rank 0.
    """

    def __init__(
        self,
        config: Evaluate,
        gradient: Gradient,
        dataset: Dataset,
        sets: Mapping[str, EvaluationSet],
        clients: Clients,
        comm: Comm,
        write_rows: Callable[[Sequence[ClientRow]], None] = lambda rows: None,
    ) -> None:
        self._write_rows = write_rows
        self._config, self._sets, self._clients, self._comm = config, sets, clients, comm
        metrics = metrics_of(dataset.loss, config.metrics)
        # Of another loss than the data's the exponential would be none.
        self._has_perplexity = dataset.loss == "tokens" and gradient.loss.fused is not None
        self._meter = Meter(gradient, Scoring.of(dataset), metrics)

    def scores(self, x: Vector, round: int) -> dict[str, float]:
        """Collective: the scores of the global model ``x`` after ``round`` rounds.

        ``x`` is a point as ``Gradient.predict`` takes it.

        See ``hpcfl.evaluation``.
        """
        config, clients, rows = self._config, self._clients, None
        if config.clients == "table":
            rows = ClientRows(self._meter, self._comm, x.device, round, self._write_rows)
        scores: dict[str, float] = {}
        for name, examples in self._sets.items():
            if len(examples):
                scores |= self._scores_on(name, examples, x, rows)
        if config.train or config.clients:
            accuracy = bool(config.clients)
            scores |= clients.global_scores(
                self._meter, x, self._comm, rows, objective=config.train, accuracy=accuracy
            )
        if config.local_models:
            scores |= clients.local_model_scores(self._meter, x, self._comm, rows)
        if config.personal:
            scores |= clients.personal_scores(self._meter, x, round, self._comm, rows)
        if self._has_perplexity:
            known = {key: loss for loss, key in PERPLEXITIES.items() if loss in scores}
            scores |= {key: _exp(scores[loss]) for key, loss in known.items()}
        return scores

    def _scores_on(
        self, name: str, examples: EvaluationSet, x: Vector, rows: ClientRows | None
    ) -> dict[str, float]:
        """Collective: NAME_loss, the accuracies of a classification, and the user's metrics."""
        batches = self._meter.each(x, examples.batches(self._comm.rank, self._comm.size))
        metrics = self._meter.metrics
        agree(metrics, "sums", self._comm)
        own = [key for metric in metrics for key in sum_names(metric, metric.count)]
        keys = [*self._meter.scoring.names, *own]
        columns = [[batch[key] for batch in batches] for key in keys]
        sums = dict(zip(keys, exact_sums(self._comm, columns, x.device), strict=True))
        # Labels that are padding do not count; of a set of padding alone nothing is known.
        scores = {f"{name}_loss": sums["loss"] / sums["examples"]} if sums["examples"] else {}
        for count, accuracy in ACCURACIES.items():
            if count in sums and sums["scored"]:
                scores[f"{name}_{accuracy}"] = sums[count] / sums["scored"]
        whole = self._meter.scores(sums)
        for metric in metrics:
            found = whole[metric.name]
            if not isinstance(found, tuple):  # the log has no place for several numbers
                scores[f"{name}_{metric.name}"] = found
        if rows is not None:
            rows.of_set(name, whole)
        return scores


def metrics_of(loss: LossName, paths: Sequence[str]) -> list[UserMetric]:
    """The metrics of data with this loss: F1 of bits, and those that the job names."""
    return [*([UserMetric("f1", F1)] if loss == "bits" else []), *load_metrics(paths)]


def _exp(loss: float) -> float:
    """The perplexity, infinite beyond the largest double."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
