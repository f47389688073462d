"""The interface of a group of ranks."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class P2PMessage(NamedTuple):
    """A tensor to send to another rank, or a buffer for one to receive from there."""

    rank: int
    """The other rank."""
    tensor: Tensor
    """Of any dtype, not empty, on any device; a buffer is contiguous."""


class Comm(Protocol):
    """A group of ranks; every method but ``abort`` is collective.

    All ranks must call the collective methods in the same order: a rank that skips one waits for
    ever in the next, or receives what was meant for another.  Implementations: ``Solo``, ``Mpi``,
    ``Gloo``, ``Nccl``; ``WatchedComm`` wraps any of them.
    """

    rank: int
    size: int
    local_rank: int
    """This rank's number among the ranks of its host, by which it takes a GPU."""
    library: str
    """The name of the communication library, with its version, for the run's history."""

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` by the sum over ranks.

        It is contiguous; int64, float32 or float64; of the same size on every rank.
        """
        ...

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Collective: the elementwise maximum over ranks of a few finite numbers."""
        ...

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: send tensors to other ranks, and fill the buffers in ``received``.

        Every rank calls it, also one that neither sends nor receives.  Between two ranks the
        tensors and their buffers are in the same order, with the same shapes and dtypes.
        """
        ...

    def bcast(self, text: str) -> str:
        """Collective: rank 0's text, on every rank."""
        ...

    def allgather(self, text: str) -> list[str]:
        """Collective: every rank's text, by rank; works also where the ranks' GPUs do not."""
        ...

    def barrier(self) -> None:
        """Collective: wait for every rank."""
        ...

    def close(self) -> None:
        """Collective: leave the group, so that no rank waits for this one."""
        ...

    def abort(self, code: int, reason: str = "") -> None:
        """End every rank with exit code ``code``; does not return.

        Gloo and NCCL end this rank alone.  Of these ``WatchedComm`` leaves ``reason`` (one line) in
        a file, by which the watchdogs of the other ranks end them with the same code.
        """
        ...


class LastWord(NamedTuple):
    """What a rank left when it ended by ``abort``."""

    rank: int
    code: int
    """Its exit code."""
    reason: str
    """The line that it printed; empty where it printed none."""


class Group(Comm, Protocol):
    """What a library offers, for ``WatchedComm``."""

    aborts_all: bool
    """Whether ``abort`` ends every rank; else it ends this one alone."""

    def wait_for_ranks(self) -> None:
        """Collective: wait for every rank, however long it takes.

        Nothing is done where the other collectives have no time-out.
        """
        ...

    def last_word(self) -> LastWord | None:
        """That of another rank, by which this one was lost to it; None where there is none."""
        ...
