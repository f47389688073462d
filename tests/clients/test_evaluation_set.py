"""Batches of an evaluation: from memory or a file, each on one rank alone."""

import numpy as np
import pytest
import torch

from hpcfl.clients.evaluation_set import EvaluationSet
from hpcfl.clients.examples import example_source
from hpcfl.data.sources.arrays import cast
from hpcfl.types import Examples

TABLE = torch.arange(40).view(20, 2)
LABELS = torch.arange(20) * 3
ROWS = np.array([1, 4, 5, 9, 12, 13, 19])


class InFile:
    """Inputs that are read when they are needed."""

    shape, dtype, workers = (20, 2), torch.int64, 1

    def read(self, rows):
        return TABLE[torch.from_numpy(rows)]


@pytest.mark.parametrize("inputs", [TABLE, InFile()], ids=["memory", "file"])
@pytest.mark.parametrize(("rows", "expected"), [(None, range(20)), (ROWS, ROWS)])
def test_every_rank_has_every_rth_batch(inputs, rows, expected):
    """The batches of 3 are the same on 1 and 2 ranks, so that the exact sums are."""
    source = example_source(Examples(inputs, LABELS), (), torch.device("cpu"))
    size = len(expected)
    found = EvaluationSet(size, rows, lambda: source, cast, batch_size=3, dtype=torch.float32)
    assert len(found) == len(expected)
    alone = list(found.batches(0, 1))
    assert torch.cat([batch.labels for batch in alone]).tolist() == [3 * row for row in expected]
    for batch in alone:
        assert torch.equal(batch.inputs, TABLE[batch.labels // 3].float())
    for rank in range(2):
        own = [batch.labels.tolist() for batch in found.batches(rank, 2)]
        assert own == [batch.labels.tolist() for batch in alone[rank::2]]


def test_nothing_to_evaluate_on():
    found = EvaluationSet(0, None, None, cast, batch_size=3, dtype=torch.float32)
    assert (len(found), list(found.batches(0, 1))) == (0, [])
