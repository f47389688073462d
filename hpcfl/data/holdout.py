"""Hold out some of every client's examples."""

from collections.abc import Sequence

import numpy as np

from hpcfl.data.partition import Rows
from hpcfl.errors import DataError
from hpcfl.seeds import stream


def hold_out(
    clients: Sequence[Rows], share: float, seed: int
) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Each client's rows to train on, and those held out; both in the order they had.

    A client keeps back ``share`` of its examples, rounded, at least one; but one at least is left
    for training, so a client with a single example holds nothing out.

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
