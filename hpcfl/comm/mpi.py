"""A group of ranks over MPI, for tensors in host memory."""

import atexit
import sys
import time
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn
from zlib import crc32

import mpi4py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.comm.base import P2PMessage
from hpcfl.comm.drain_output import wait_until_read
from hpcfl.comm.launcher import Launch
from hpcfl.comm.solo import end_process
from hpcfl.comm.staging import StagedExchange
from hpcfl.errors import INTERRUPTED, RankError

# MPI starts in the first ``start`` and ends with the interpreter, because it cannot start again:
# a script may run several jobs.  Left to mpi4py, an uncaught exception would run into MPI_Finalize,
# which waits for the other ranks for ever: ``_end_with_process`` sees to both.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
from mpi4py import MPI  # noqa: E402

_REMEDY = (
    "use the mpirun that belongs to mpi4py's MPI (under Slurm: srun --mpi=pmi2 or pmix),"
    " or comm.backend: gloo with srun or torchrun"
)

LEFT = 1  # the tag of the message of a rank that ends
SPINS, NAP_S = 200, 1e-4  # about 0.05 ms of trying, then 0.1 ms between two tries


class _Process:
    """What this process knows of its MPI."""

    ends: MPI.Intracomm | None = None
    """A communicator for ranks that end, once MPI was started here."""
    in_use = False
    """Whether a group was started and not left in good order: others may wait for this rank."""
    failed = 0
    """With which exit code an exception that nobody caught ends all ranks."""


class Mpi:
    """All ranks of MPI_COMM_WORLD; buffers only, nothing is pickled."""

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        self._world = start(launch, "mpi")
        # Slurm reports an aborted step as killed (137), whatever code MPI's Abort was given.
        slurm = launch.launcher == "slurm"
        self._failures = Failures(self._world, timeout_s) if slurm else None
        self.rank, self.size = self._world.rank, self._world.size
        self.local_rank = local_rank(launch, self._world)[0]
        self.library = library()

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` (contiguous, on the CPU) by its sum."""
        self._wait(self._world.Iallreduce(MPI.IN_PLACE, tensor.numpy(), op=MPI.SUM))

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Collective: the elementwise maximum."""
        out = values.copy()
        self._wait(self._world.Iallreduce(MPI.IN_PLACE, out, op=MPI.MAX))
        return out

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: fill the room in ``received`` with what other ranks send."""
        freight = StagedExchange(sent, received, torch.device("cpu"))
        requests = [self._world.Irecv(room.numpy(), rank) for rank, room in freight.received]
        requests += [self._world.Isend(data.numpy(), rank) for rank, data in freight.sent]
        for request in requests:
            self._wait(request)
        freight.deliver()

    def bcast(self, text: str) -> str:
        """Collective: rank 0's text."""
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        length = np.array([data.size], dtype=np.int64)
        self._wait(self._world.Ibcast(length))
        payload = data.copy() if self.rank == 0 else np.empty(length[0], dtype=np.uint8)
        self._wait(self._world.Ibcast(payload))
        return payload.tobytes().decode()

    def allgather(self, text: str) -> list[str]:
        """Collective: every rank's text, by rank."""
        own = text.encode()
        length = int(self.allreduce_max(np.array([float(len(own))]))[0])
        padded = np.frombuffer(own.ljust(length, b"\0"), dtype=np.uint8)
        table = np.empty((self.size, length), dtype=np.uint8)
        self._wait(self._world.Iallgather(padded, table))
        return [row.tobytes().rstrip(b"\0").decode() for row in table]

    def barrier(self) -> None:
        """Collective: wait for every rank."""
        self._wait(self._world.Ibarrier())

    def close(self) -> None:
        """Collective: leave the group in good order; another may be started afterwards."""
        finish(self._failures)
        if self._failures:
            self._failures.close()

    def abort(self, code: int) -> NoReturn:
        """End every rank with exit code ``code``."""
        if self._failures:
            self._failures.end(code)
        abort(self._world, code)

    def _wait(self, request: MPI.Request) -> None:
        """Wait; a rank that hears of another's failure meanwhile ends with that rank's code."""
        _wait(request, self._failures)


class Failures:
    """How a rank that must end tells the others, so that all end by themselves, with its code.

    Whoever learns of a failure tells all others, and ends once each of them knows.  So ranks may
    fail at once, and they leave together: srun kills those that stay long behind the first.
    Collective: of all ranks of ``world``.

    Args:
        world: the ranks.
        timeout_s: how long a rank that ends waits for the others, each of which hears of it only
            when it next waits for others.
    """

    def __init__(self, world: MPI.Intracomm, timeout_s: float) -> None:
        self._comm, self._timeout_s = world.Dup(), timeout_s
        self._received, self._told = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        self._status = MPI.Status()
        self._heard: dict[int, int] = {}  # the exit code of each rank that said it, first first
        self._expect()

    def heard(self) -> int:
        """The exit code with which another rank ends, the first that said so; 0: none does."""
        while self._request.Test(self._status):
            self._heard[self._status.source] = int(self._received[0])
            self._expect()
        return next(iter(self._heard.values()), 0)

    def end(self, code: int) -> NoReturn:
        """End this process with ``code`` once all others know that it does, or the time is up."""
        deadline = time.monotonic() + self._timeout_s
        self._told[0] = code
        try:
            self.heard()
            others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
            # Issend: an Isend may be complete before the other has received anything.
            waiting = {
                rank: self._comm.Issend(self._told, rank)
                for rank in others
                if rank not in self._heard
            }
            while waiting and time.monotonic() < deadline:
                self.heard()  # a rank that ends, too, may be gone before it has received
                waiting = {
                    rank: request
                    for rank, request in waiting.items()
                    if not request.Test() and rank not in self._heard
                }
                time.sleep(NAP_S)
        except MPI.Exception as error:  # the way to a rank that has ended already is cut
            sys.stderr.write(f"rank {self._comm.rank} cannot tell the others: {error}\n")
        finally:  # after a Ctrl-C, too
            wait_until_read()
            end_process(code)

    def close(self) -> None:
        """Expect no failure any more."""
        self._request.Cancel()
        self._request.Wait()
        self._comm.Free()

    def _expect(self) -> None:
        """Receive the next code, of whatever rank."""
        self._request = self._comm.Irecv(self._received, MPI.ANY_SOURCE)


def _wait(request: MPI.Request, failures: Failures | None = None) -> None:
    """Wait without keeping the core from ranks that still work, where ranks exceed cores.

    MPI's own wait spins; so does this one at first, for the sake of short waits.
    """
    for _ in range(SPINS):
        if request.Test():
            return
    while not request.Test():
        if failures and (code := failures.heard()):
            failures.end(code)
        time.sleep(NAP_S)


def start(launch: Launch, backend: str) -> MPI.Intracomm:
    """Collective: start MPI and return its world.

    Args:
        launch: what the launcher says.
        backend: what this rank is to sum with.

    Raises:
        RankError: MPI sees other ranks than the launcher started (it would run N worlds of one
            rank each, all of them rank 0), ranks have other backends (each would wait for its
            own), a rank has ended instead of coming here, or somebody else has ended MPI in this
            process.
    """
    if MPI.Is_finalized():
        raise RankError("MPI has ended in this process and cannot start again; use a new process")
    if not MPI.Is_initialized():
        with warnings.catch_warnings():  # of a launcher that is not this MPI's: told below
            warnings.simplefilter("ignore", RuntimeWarning)
            MPI.Init_thread(MPI.THREAD_FUNNELED)  # only the main thread calls MPI
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (launch.rank, launch.size):
        seen = f"{launch.launcher} started rank {launch.rank} of {launch.size}"
        found = f"MPI ({library()}) sees rank {world.rank} of {world.size}"
        raise RankError(f"launcher and MPI do not match: {seen}, but {found}; {_REMEDY}")
    mark = crc32(backend.encode())
    marks = np.array([mark, -mark], dtype=np.int64)
    meeting = world.Iallreduce(MPI.IN_PLACE, marks, op=MPI.MAX)
    while not meeting.Test():
        _require_nobody_left(world)
        time.sleep(NAP_S)
    if marks[0] != -marks[1]:
        raise RankError(
            f"comm.backend: rank {world.rank} takes {backend}, others do not; give all ranks the "
            "same job, and GPUs to all of them or to none"
        )
    if _Process.ends is None:
        _end_with_process(world)
    _Process.in_use = True
    return world


def library() -> str:
    """The name and version of the MPI library."""
    first = MPI.Get_library_version().split("\n")[0].partition(",")[0]
    return " ".join(first.split())


def finish(failures: Failures | None = None) -> None:
    """Collective: let this process go on without the others, until it starts again or ends.

    Args:
        failures: how to hear meanwhile that another rank failed.
    """
    _wait(MPI.COMM_WORLD.Ibarrier(), failures)
    _Process.in_use = False


def _require_nobody_left(world: MPI.Intracomm) -> None:
    """Refuse to wait for ranks whose process is ending.

    Raises:
        RankError: there is one; rank 0 hears of every one, the others of rank 0.
    """
    status = MPI.Status()
    if _Process.ends and _Process.ends.Iprobe(MPI.ANY_SOURCE, LEFT, status):
        raise RankError(
            f"rank {status.source} of {world.size} has ended instead of starting the run that "
            f"rank {world.rank} starts; let every rank start the same runs, one after the other"
        )


def _end_with_process(world: MPI.Intracomm) -> None:
    """Collective: end MPI when the interpreter ends, and all ranks when one has an exception."""
    _Process.ends = world.Dup()
    atexit.register(_end)
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Not here: torch.distributed's hook calls this one, and writes what it says afterwards.
        _Process.failed = INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1
        show(kind, error, trace)

    sys.excepthook = hook


def _end() -> None:
    """Collective: end MPI, once every rank says that it ends; or all ranks, after an exception.

    Those that start another run instead hear it (see ``start``).  Finalize itself waits too, but
    tells nobody, listens to no signal and keeps Python's lock.
    """
    ends = _Process.ends
    if ends and ends.size > 1 and _Process.failed and not MPI.Is_finalized():
        abort(MPI.COMM_WORLD, _Process.failed)
    # Where a group was not left in good order, others may wait for this rank: they end when the
    # launcher sees that it ended without a word.
    if ends is None or _Process.in_use or MPI.Is_finalized():
        return
    others = range(1, ends.size) if ends.rank == 0 else range(1)
    word = np.zeros(1, np.uint8)
    words = [ends.Isend(word, other, LEFT) for other in others]
    words += [ends.Irecv(np.empty(1, np.uint8), other, LEFT) for other in others]
    try:
        for request in words:
            _wait(request)
    except KeyboardInterrupt:
        abort(MPI.COMM_WORLD, INTERRUPTED)
    MPI.Finalize()


def local_rank(launch: Launch, world: MPI.Intracomm) -> tuple[int, bool]:
    """Collective: this rank's place on its host, and whether all ranks are on one host."""
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    place = host.rank if launch.local_rank is None else launch.local_rank
    alone = host.size == world.size
    host.Free()
    return place, alone


def share(world: MPI.Intracomm, text: str) -> str:
    """Collective: rank 0's text."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    length = np.array([data.size], dtype=np.int64)
    world.Bcast(length)
    payload = data.copy() if world.rank == 0 else np.empty(length[0], dtype=np.uint8)
    world.Bcast(payload)
    return payload.tobytes().decode()


def abort(world: MPI.Intracomm, code: int) -> NoReturn:
    """End every rank with exit code ``code``, once the launcher has read what this one said."""
    wait_until_read()
    world.Abort(code)
    end_process(code)  # MPICH's Abort may return while the launcher is still ending the ranks
