"""The interface of a group of ranks."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class P2PMessage(NamedTuple):
    """A tensor that goes to another rank, or room for one that comes from there."""

    rank: int
    """The other one."""
    tensor: Tensor
    """Of any dtype, not empty, on any device; contiguous where it is room."""


class Comm(Protocol):
    """A group of ranks; every method but ``abort`` is collective."""

    rank: int
    size: int
    local_rank: int
    """This rank's place among the ranks of its host: which GPU it takes."""
    library: str
    """What sums, with its version, for the record."""

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` (contiguous; int64, float32 or float64) by its sum."""
        ...

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Collective: the elementwise maximum of a few finite numbers."""
        ...

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: fill the room in ``received`` with what other ranks send.

        Every rank calls it, also one that neither sends nor receives.  From one rank to another
        tensors go in one order, and what is sent has the shape and dtype of the room for it.
        """
        ...

    def bcast(self, text: str) -> str:
        """Collective: rank 0's text, on every rank."""
        ...

    def allgather(self, text: str) -> list[str]:
        """Collective: every rank's text, by rank; needs no device."""
        ...

    def barrier(self) -> None:
        """Collective: wait for every rank."""
        ...

    def close(self) -> None:
        """Collective: leave the group in good order."""
        ...

    def abort(self, code: int) -> None:
        """End every rank with exit code ``code``; does not return."""
        ...
