"""The ``evaluate`` section of a job."""

from dataclasses import dataclass

from hpcfl.data.base import Dataset
from hpcfl.errors import JobError
from hpcfl.types import Count, Natural, Section


@dataclass(frozen=True, kw_only=True)
class Evaluate(Section):
    """When the global model is evaluated, and by what; the last round always is."""

    every: Count | None = None
    """At every multiple of so many rounds; never before the last round when absent."""
    last: Natural = 0
    """And at every one of the last so many rounds."""
    batch_size: Count = 500
    """Examples a batch, for evaluation and for full-batch gradients."""
    train: bool = False
    """Also by its loss over all clients' training examples: the objective."""
    clients: bool = False
    """Also by its accuracy on each client's own examples: their mean, and their worst decile."""
    own: bool = False
    """Also each client's own last local model, where the algorithm keeps it."""
    best: bool = False
    """Keep the model of the best evaluated round."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether the model after ``round`` rounds is evaluated."""
        regular = self.every is not None and round % self.every == 0
        return regular or round > rounds - self.last or round == rounds

    def check(self, algorithm: str, dataset: Dataset, own: str | None) -> None:
        """Raise JobError where what is asked for cannot be had.

        Args:
            algorithm: its name.
            dataset: whose classes and test set it takes.
            own: the field of a client's state that is its last local model.
        """
        for key in ("clients", "own"):
            if getattr(self, key) and dataset.classes is None:
                raise JobError(
                    f"evaluate.{key}: accuracies need classes, which this data has none of; take "
                    "it out"
                )
        if self.own and own is None:
            raise JobError(
                f"evaluate.own: {algorithm} keeps no client's own last model, as fedhbm does; take "
                "it out"
            )
        if self.best and (dataset.test is None or not len(dataset.test.labels)):
            raise JobError("evaluate.best: this data has no test set to be best on; take it out")
