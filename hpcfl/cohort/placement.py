"""Which rank owns which client: fixed for a number of ranks, balanced by examples."""

from collections.abc import Sequence
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import JobError


def owners(examples: Sequence[int], ranks: int) -> NDArray[np.int64]:
    """The owner of every client: the largest first, each to the rank with the least so far.

    Raises:
        JobError: there are more ranks than clients.
    """
    if ranks > len(examples):
        raise JobError(
            f"{ranks} ranks for {len(examples)} clients: a rank would own none; "
            f"start at most {len(examples)} ranks"
        )
    owner = np.empty(len(examples), dtype=np.int64)
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    for client in np.argsort(-np.asarray(examples), kind="stable"):
        load, rank = loads[0]
        owner[client] = rank
        heapreplace(loads, (load + int(examples[client]), rank))
    return owner
