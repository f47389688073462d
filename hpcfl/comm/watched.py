"""A group of ranks with a watchdog, which ends the run if a collective takes too long."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.comm.base import Group, P2PMessage
from hpcfl.comm.failure import raise_collectively
from hpcfl.comm.watchdog import Watchdog
from hpcfl.errors import RankError
from hpcfl.io.heartbeat import Heartbeats

P = ParamSpec("P")
T = TypeVar("T")


class WatchedComm:
    """Wraps a group and counts its collectives for the watchdog, at the cost of some attributes."""

    def __init__(self, comm: Group, timeout_s: float) -> None:
        self._comm = comm
        self.rank, self.size, self.local_rank = comm.rank, comm.size, comm.local_rank
        self.library = comm.library
        self._watchdog = Watchdog(comm.rank, comm.size, timeout_s)
        self.progress = self._watchdog.progress
        """Where this rank is; the session sets its round and phase."""
        self._with_heartbeats = False

    @property
    def backend(self) -> str:
        """The name of the wrapped group: solo, mpi, gloo or nccl."""
        return type(self._comm).__name__.lower()

    def start_heartbeats(self, root: Path, session_id: str) -> None:
        """Collective: write heartbeats from now on, and end the run if a rank waits too long.

        Args:
            root: the folder in which each session has a folder; rank 0 holds the run's lock.
            session_id: of this start of the run; the folders of others are removed.

        Raises:
            StoreError: they cannot be written.
        """
        files = Heartbeats(root, session_id, self.rank)
        with raise_collectively(self):
            if self.rank == 0:
                files.begin()
        # After the first: the folder must exist before any rank opens its file.
        with raise_collectively(self):
            self._watchdog.watch_files(files)
        self._with_heartbeats = True  # on all ranks from the same collective on

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` by its sum."""
        self._wait(self._comm.allreduce_sum, tensor)

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Collective: the elementwise maximum."""
        return self._wait(self._comm.allreduce_max, values)

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: send tensors to other ranks, and fill the buffers in ``received``."""
        self._wait(self._comm.exchange, sent, received)

    def bcast(self, text: str) -> str:
        """Collective: rank 0's text."""
        return self._wait(self._comm.bcast, text)

    def allgather(self, text: str) -> list[str]:
        """Collective: every rank's text, by rank."""
        return self._wait(self._comm.allgather, text)

    def barrier(self) -> None:
        """Collective: wait for every rank."""
        self._wait(self._comm.barrier)

    def close(self) -> None:
        """Collective: leave the group in good order."""
        self.progress.phase = "ending"
        try:
            self._wait(self._comm.close)
        finally:
            self._watchdog.close()

    def abort(self, code: int, reason: str = "") -> None:
        """End every rank with exit code ``code``; does not return.

        Args:
            code: of 1 to 255.
            reason: one line for the report, which `hpcfl status` shows.  Where the library ends
                this rank alone, the watchdogs of the others end them by it, with the same code.
                "" makes no report.
        """
        if reason:
            self._watchdog.claim_report(reason, None if self._comm.aborts_all else code)
        self._comm.abort(code, reason)

    def _wait(self, collective: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Collective: call ``collective`` while the watchdog counts the time.

        Before the first round it waits for all ranks first, as one may need longer than Gloo's or
        NCCL's time-out to verify its states; heartbeats tell whether a rank is alive.
        """
        self.progress.calls += 1
        self.progress.waits = True
        try:
            if self._with_heartbeats and self.progress.round == 0:
                self._comm.wait_for_ranks()
            return collective(*args, **kwargs)
        except RankError as error:
            # The rank that was lost may have said why, and printed it.  It leaves no report where
            # its disk fails.
            if (word := self._comm.last_word()) and word.reason:
                self._watchdog.claim_report(word.reason, word.code)
                self._comm.abort(word.code)
            # Every rank sees that one was lost; only the first to claim the report prints it.
            if not self._watchdog.claim_report(str(error), error.exit_code):
                self._comm.abort(self._watchdog.reported_code())
            raise
        finally:
            self.progress.waits = False
