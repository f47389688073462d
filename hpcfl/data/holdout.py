"""Hold out some examples of every client for tests."""

from collections.abc import Sequence

import numpy as np

from hpcfl.data.partition import Rows
from hpcfl.errors import DataError
from hpcfl.seeds import stream


def hold_out(
    clients: Sequence[Rows], share: float, seed: int
) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Each client's training rows, and its held-out rows; both in their previous order.

    A client holds out ``share`` of its examples, rounded, at least one; but at least one remains
    for training, so that a client with a single example holds out none.

    Raises:
        DataError: no client has two examples.
    """
    train, held = [], []
    for client, rows in enumerate(clients):
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[stream(seed, "holdout", client=client).permutation(len(rows))[:count]] = True
        train.append(rows[~chosen])
        held.append(rows[chosen])
    if not any(len(rows) for rows in held):
        raise DataError("data.holdout: no client has 2 examples, so nothing can be held out")
    return tuple(train), tuple(held)
