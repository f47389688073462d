"""How good the model is: scores over the whole test set, spread over the ranks."""

from collections.abc import Mapping

import torch

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

    def scores(self, x: Vector) -> Mapping[str, float]:
        """Collective: the mean over the test set of every score; nothing without a test set."""
        size = len(self._tests)
        if not size:
            return {}
        batches = [
            totals(self._loss, self._gradient.predict(x, batch.inputs), batch.labels)
            for batch in self._tests.batches(self._comm.rank, self._comm.size)
        ]
        names = self._tests.scores(self._loss)
        columns = [[batch[name] for batch in batches] for name in names]
        sums = exact_sums(self._comm, columns, x.device)
        return {f"test_{name}": total / size for name, total in zip(names, sums, strict=True)}
