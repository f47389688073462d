"""How good the model is: scores over the whole test set, spread over the ranks."""

from hpcfl.comm.base import Comm
from hpcfl.comm.sums import exact_sums
from hpcfl.data.base import LossName
from hpcfl.local.population import TestSet
from hpcfl.local.step import Gradient
from hpcfl.metrics import totals
from hpcfl.types import Vector


class Evaluation:
    """Scores a model; the same numbers on any number of ranks."""

    def __init__(self, gradient: Gradient, tests: TestSet, loss: LossName, comm: Comm) -> None:
        self._gradient, self._tests, self._loss, self._comm = gradient, tests, loss, comm

    def scores(self, x: Vector) -> dict[str, float]:
        """Collective: test_loss, and of a classification test_accuracy; none without a test set."""
        if not len(self._tests):
            return {}
        found = [
            totals(self._loss, self._gradient.predict(x, batch.inputs), batch.labels)
            for batch in self._tests.batches(self._comm.rank, self._comm.size)
        ]
        names = ["loss", "examples", *(["correct"] if self._loss == "cross_entropy" else [])]
        columns = [[batch[name] for batch in found] for name in names]
        sums = dict(zip(names, exact_sums(self._comm, columns, x.device), strict=True))
        scores = {"test_loss": sums["loss"] / sums["examples"]}
        if "correct" in sums:
            scores["test_accuracy"] = sums["correct"] / sums["examples"]
        return scores
