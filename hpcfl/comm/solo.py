"""The group of a single rank, which needs no MPI and no torch.distributed."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.comm.base import P2PMessage
from hpcfl.comm.in_time import LAST_S, in_time


class Solo:
    """One process: every collective returns at once."""

    rank = 0
    size = 1
    local_rank = 0
    library = "one rank"
    aborts_all = True

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Leave ``tensor`` as it is."""

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """A copy of ``values``."""
        return values.copy()

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Do nothing: there is no other rank."""

    def bcast(self, text: str) -> str:
        """``text`` itself."""
        return text

    def allgather(self, text: str) -> list[str]:
        """``text`` alone."""
        return [text]

    def barrier(self) -> None:
        """Return at once."""

    def wait_for_ranks(self) -> None:
        """Return at once."""

    def last_word(self) -> None:
        """There is no other rank."""

    def close(self) -> None:
        """Do nothing."""

    def abort(self, code: int, reason: str = "") -> NoReturn:
        """End this process at once with exit code ``code``."""
        end_process(code)


def end_process(code: int) -> NoReturn:
    """End this process at once: flush its output, but wait for no thread and no exit handler."""
    try:
        flush()
    finally:
        os._exit(code)


def flush() -> None:
    """Flush standard output and standard error; a failure must not keep the process alive."""
    for stream in (sys.stdout, sys.stderr):
        # Absent; a full disk, or a full pipe that nobody reads; closed.
        with suppress(AttributeError, OSError, ValueError):
            in_time(LAST_S, stream.flush)
