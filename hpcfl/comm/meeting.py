"""Wait until all ranks of torch.distributed have come to their store, and share a secret."""

import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from torch.distributed import DistError

from hpcfl.comm import secret
from hpcfl.comm.launcher import Launch, restarts
from hpcfl.comm.rendezvous import INTERFACE, POLL_S, Connection, connect_to_store, resolve
from hpcfl.comm.tcp_store import LimitedStore, SealedStore
from hpcfl.errors import HpcflError, RankError, RemoteRankError

TIMEOUT_FACTOR = 1.25  # of limits that come after the watchdog's, whose message says more

_PLACE = "place"  # the key under which rank 0 says where the secret is
_FAILED = "failed"  # begins its value where the secret is nowhere
_MEETINGS = count()  # numbers those of this process, which are the same on every rank


class Rendezvous(NamedTuple):
    """A rank that has met the others."""

    connection: Connection
    texts: SealedStore
    """For the texts of the ranks; its keys are of this group alone."""


def meet(launch: Launch, backend: str, timeout_s: float, run: Path) -> Rendezvous:
    """Collective: connect to the ranks' store, and wait until all ranks have.

    Args:
        launch: of this rank.
        backend: of this rank.
        timeout_s: how long to wait for the others.
        run: the run directory, which need not be there; see ``hpcfl.comm.secret``.

    Raises:
        RankError: a host's name cannot be resolved, or the store cannot be opened, or not all ranks
            reach it within ``timeout_s``, or they have chosen different backends, or the secret
            cannot be read.
        JobError, DiskError: rank 0 cannot make the file; RemoteRankError on the others.
    """
    found = connect_to_store(launch, backend, timeout_s)
    if backend == "gloo" and not found.one_host and INTERFACE not in os.environ:
        # Gloo listens at the address of the host's own name.  If the name has none, it listens at
        # the loopback address, and ranks on other hosts try to connect until their time is up.
        resolve(socket.gethostname(), launch, f"set {INTERFACE} to the host's network interface")
    # torchrun keeps the store when it starts ranks again, and several runs of a process use one.
    name = f"hpcfl/{restarts(os.environ)}/{next(_MEETINGS)}"
    store = LimitedStore(found.store, name, TIMEOUT_FACTOR * timeout_s)
    meeting = _Meeting(store, launch, timeout_s)
    try:
        meeting.wait_for_all()
        with meeting.shared(found.secret, run) as drawn:
            texts = store.sealed(drawn)
            difference = meeting.compare(texts, backend)
    except DistError as error:
        raise RankError(
            f"rank {launch.rank} of {launch.size}: rank 0 is gone before all ranks have met; its "
            "own message, if it printed one, is above",
            prints=True,  # because rank 0 cannot
        ) from error
    if difference:
        raise RankError(difference)
    return Rendezvous(found, texts)


class _Meeting:
    """The ranks of one group, until all have met.

    Rank 0 looks for all ranks and tells the others: if each looked for all, the store would be busy
    with that.
    """

    def __init__(self, store: LimitedStore, launch: Launch, timeout_s: float) -> None:
        self._store, self._launch, self._timeout_s = store, launch, timeout_s
        self._deadline = time.monotonic() + timeout_s
        ranks = range(launch.size)
        self._here, self._backends, self._read = (
            [f"{name}/{rank}" for rank in ranks] for name in ("here", "backend", "read")
        )

    def wait_for_all(self) -> None:
        """Collective: wait until every rank has come.

        Raises:
            RankError: one does not.
        """
        rank = self._launch.rank
        self._store.set(self._here[rank])
        self._wait_for([_PLACE] if rank else self._here)

    @contextmanager
    def shared(self, by_mpi: bytes | None, run: Path) -> Iterator[bytes]:
        """Collective: the secret of the ranks, which rank 0 offers to the others for the block.

        Args:
            by_mpi: the secret, where MPI has brought it to all.
            run: the run directory.

        Raises:
            JobError, DiskError: rank 0 cannot offer it; RemoteRankError on the others.
            RankError: it cannot be read.
        """
        store, rank = self._store, self._launch.rank
        if rank == 0:
            drawn = by_mpi or secret.draw()
            with ExitStack() as stack:
                try:
                    in_file = by_mpi is None and self._launch.size > 1
                    place = stack.enter_context(secret.offered(drawn, run)) if in_file else ""
                except HpcflError as error:
                    store.set(_PLACE, f"{_FAILED} {error.exit_code}".encode())
                    self._let_read()
                    raise
                store.set(_PLACE, place.encode())
                yield drawn
            return
        place = store.get(_PLACE).decode(errors="replace")
        if failed := re.fullmatch(rf"{_FAILED} (1|2|74)", place):
            store.set(self._read[rank])
            # Printed, as any process may have written that text.
            unshared = RemoteRankError(
                int(failed[1]),
                f"rank {rank} of {self._launch.size}: rank 0 shares no secret with the others; its "
                "own message, if it printed one, is above",
            )
            unshared.prints = True
            raise unshared
        try:
            drawn = by_mpi or secret.read(place, run)
        except RankError:
            store.set(self._backends[rank])  # without a code: rank 0 need not wait for it
            raise
        yield drawn

    def compare(self, texts: SealedStore, backend: str) -> str:
        """Collective: which rank has another backend than rank 0, in words; "" if none has.

        When it returns on rank 0, all ranks have read the secret.

        Raises:
            RankError: a rank has come, but stops there, or another process has set its backend.
        """
        rank = self._launch.rank
        texts.set(self._backends[rank], backend.encode())
        if rank == 0:
            self._wait_for(self._backends)
            found = [texts.get(key).decode() for key in self._backends]
            texts.set("met", _difference(found).encode())
        difference = texts.get("met").decode()
        texts.set(self._read[rank])
        if difference and rank == 0:
            self._let_read()
        return difference

    def _wait_for(self, keys: Sequence[str]) -> None:
        """Wait for keys of the other ranks.

        Raises:
            RankError: a rank does not come, or does not continue.
        """
        while not self._store.check(keys):
            if time.monotonic() > self._deadline:
                absent = self._absent(self._here)
                if not absent and time.monotonic() > self._deadline + self._timeout_s:
                    absent = self._absent(keys)  # the place is rank 0's key
                if absent:
                    raise self._did_not_come(absent)
            time.sleep(POLL_S)

    def _absent(self, keys: Sequence[str]) -> list[int]:
        """The ranks whose keys are not set."""
        return [rank for rank, key in enumerate(keys) if not self._store.check([key])]

    def _did_not_come(self, absent: Sequence[int]) -> RankError:
        rank, size, _, _ = self._launch
        more = len(absent) - 1
        return RankError(
            f"rank {rank} of {size}: rank {absent[0]} did not come within {self._timeout_s:g} s"
            f"{f' (and {more} more)' * bool(more)}; it has ended or hangs (comm.timeout_s), or "
            "sees no GPU and takes another backend",
            prints=all(lower in absent for lower in range(rank)),  # rank 0 may not be able to
        )

    def _let_read(self) -> None:
        """Wait for the others: the store ends with this process."""
        with suppress(DistError, RankError):
            self._store.wait(self._read[1:])


def _difference(backends: Sequence[str]) -> str:
    """Which rank has another backend than rank 0, in words; "" if none has."""
    for rank, backend in enumerate(backends):
        if backend != backends[0]:
            return (
                f"comm.backend: rank {rank} takes {backend}, rank 0 {backends[0]}; give all ranks "
                "the same job, and GPUs to all of them or to none"
            )
    return ""
