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
from hpcfl.io.signals import interrupt_ends

# MPI cannot start again once it has ended, and a script may run several jobs.  So the first call of
# ``start`` starts it, and it ends with the interpreter (``_end_with_process``).  Ended by mpi4py, a
# rank with an uncaught exception would wait in MPI_Finalize for the other ranks for ever.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
from mpi4py import MPI  # noqa: E402

_REMEDY = (
    "use the mpirun that belongs to mpi4py's MPI (under Slurm: srun --mpi=pmi2 or pmix),"
    " or comm.backend: gloo with srun or torchrun"
)

ENDING_TAG = 1  # of the message that a rank sends when its process ends
SPINS, NAP_S = 200, 1e-4  # test a request 200 times (0.05 ms), then every 0.1 ms


class _Process:
    """The state of MPI in this process."""

    ending: MPI.Intracomm | None = None
    """The communicator of the messages of ranks that end, once MPI was started here."""
    in_use = False
    """Whether a group was started and not closed: other ranks may wait for this one."""
    exit_code = 0
    """The exit code of an uncaught exception, which ends all ranks; 0: there was none."""


class Mpi:
    """All ranks of MPI_COMM_WORLD; it sends buffers only, and pickles nothing."""

    aborts_all = True

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        self._world = start(launch, "mpi")
        # Slurm reports exit code 137 for a step that MPI_Abort ends, whatever code it was given.
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
        """Collective: send tensors to other ranks, and fill the buffers in ``received``."""
        staged = StagedExchange(sent, received, torch.device("cpu"))
        # All requests begin before any is waited for: two ranks that send to each other would
        # otherwise wait for each other.
        requests = [self._world.Irecv(data.numpy(), rank) for rank, data in staged.received]
        requests += [self._world.Isend(data.numpy(), rank) for rank, data in staged.sent]
        for request in requests:
            self._wait(request)
        staged.deliver()

    def bcast(self, text: str) -> str:
        """Collective: rank 0's text."""
        return bcast_text(self._world, text, self._failures)

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

    def wait_for_ranks(self) -> None:
        """Do nothing: MPI's collectives wait however long it takes."""

    def last_word(self) -> None:
        """There is none: a rank of MPI ends all with its code."""

    def close(self) -> None:
        """Collective: leave the group; another one may be started afterwards."""
        finish(self._failures)
        if self._failures:
            self._failures.close()

    def abort(self, code: int, reason: str = "") -> NoReturn:
        """End every rank with exit code ``code``."""
        if self._failures:
            self._failures.end(code)
        abort(self._world, code)

    def _wait(self, request: MPI.Request) -> None:
        """Wait for a request; if another rank fails meanwhile, end with that rank's exit code."""
        _wait(request, self._failures)


class Failures:
    """Messages by which all ranks end by themselves with the exit code of the rank that failed.

    A rank that fails, or that receives such a message, sends its exit code to all others and ends
    once each of them has received it.  Several ranks may fail at once.  All end together, because
    srun kills the ranks that are still there some time after the first has ended.

    Making one is collective.

    Args:
        world: the ranks.
        timeout_s: how long a rank that ends waits for the others, which receive its message only
            when they next wait in a collective.
    """

    def __init__(self, world: MPI.Intracomm, timeout_s: float) -> None:
        self._comm, self._timeout_s = world.Dup(), timeout_s
        self._received, self._sent = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        self._status = MPI.Status()
        self._codes: dict[int, int] = {}  # the exit codes received, by rank, the first one first
        self._post_receive()

    def received_code(self) -> int:
        """The exit code of the first other rank that failed; 0: none did so far."""
        while self._request.Test(self._status):
            self._codes[self._status.source] = int(self._received[0])
            self._post_receive()
        return next(iter(self._codes.values()), 0)

    def end(self, code: int) -> NoReturn:
        """Send ``code`` to all others, and end this process once they have it or time is up."""
        deadline = time.monotonic() + self._timeout_s
        self._sent[0] = code
        try:
            self.received_code()
            others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
            # Issend is complete when the other has begun to receive; Isend may be before that.
            waiting = {
                rank: self._comm.Issend(self._sent, rank)
                for rank in others
                if rank not in self._codes
            }
            while waiting and time.monotonic() < deadline:
                self.received_code()  # a rank that fails, too, may end without receiving
                waiting = {
                    rank: request
                    for rank, request in waiting.items()
                    if not request.Test() and rank not in self._codes
                }
                time.sleep(NAP_S)
        except MPI.Exception as error:  # a rank that has ended already cannot be reached
            sys.stderr.write(f"rank {self._comm.rank} cannot notify the others: {error}\n")
        finally:  # also after Ctrl-C
            wait_until_read()
            end_process(code)

    def close(self) -> None:
        """Collective: stop receiving."""
        self._request.Cancel()
        self._request.Wait()
        self._comm.Free()

    def _post_receive(self) -> None:
        """Begin to receive the next exit code, from any rank."""
        self._request = self._comm.Irecv(self._received, MPI.ANY_SOURCE)


def _wait(request: MPI.Request, failures: Failures | None = None) -> None:
    """Wait for a request; sleep between tests, so that other ranks can use the core.

    MPI's own wait spins, which slows down ranks that still compute where there are more ranks than
    cores.  This one spins only at first, because a sleep would delay short waits.
    """
    for _ in range(SPINS):
        if request.Test():
            return
    while not request.Test():
        if failures and (code := failures.received_code()):
            failures.end(code)
        time.sleep(NAP_S)


def start(launch: Launch, backend: str) -> MPI.Intracomm:
    """Collective: start MPI and return its world.

    Args:
        launch: the rank and size that the launcher set.
        backend: the backend of this rank.

    Raises:
        RankError: MPI sees other ranks than the launcher started (there would be N worlds of one
            rank each, all of them rank 0); ranks have different backends (each would wait for
            others of its own); a rank has ended without calling this; or MPI was ended in this
            process by other code.
    """
    if MPI.Is_finalized():
        raise RankError("MPI has ended in this process and cannot start again; use a new process")
    if not MPI.Is_initialized():
        # It waits for all ranks, and one may have ended by the same Ctrl-C before it came.
        with interrupt_ends(), warnings.catch_warnings():
            # About another MPI's launcher, which is an error below.
            warnings.simplefilter("ignore", RuntimeWarning)
            MPI.Init_thread(MPI.THREAD_FUNNELED)  # only the main thread calls MPI
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (launch.rank, launch.size):
        seen = f"{launch.launcher} started rank {launch.rank} of {launch.size}"
        found = f"MPI ({library()}) sees rank {world.rank} of {world.size}"
        raise RankError(f"launcher and MPI do not match: {seen}, but {found}; {_REMEDY}")
    # The maxima of a code and of its negative are opposite only if all ranks have the same code.
    code = crc32(backend.encode())
    codes = np.array([code, -code], dtype=np.int64)
    request = world.Iallreduce(MPI.IN_PLACE, codes, op=MPI.MAX)
    while not request.Test():
        _require_none_ended(world)
        time.sleep(NAP_S)
    if codes[0] != -codes[1]:
        raise RankError(
            f"comm.backend: rank {world.rank} takes {backend}, others do not; give all ranks the "
            "same job, and GPUs to all of them or to none"
        )
    if _Process.ending is None:
        _end_with_process(world)
    _Process.in_use = True
    return world


def library() -> str:
    """The name and version of the MPI library."""
    first = MPI.Get_library_version().split("\n")[0].partition(",")[0]
    return " ".join(first.split())


def finish(failures: Failures | None = None) -> None:
    """Collective: wait for all ranks; then no rank waits for this one until the next ``start``.

    Args:
        failures: receives the failure of another rank meanwhile.
    """
    _wait(MPI.COMM_WORLD.Ibarrier(), failures)
    _Process.in_use = False


def _require_none_ended(world: MPI.Intracomm) -> None:
    """Refuse to wait for ranks whose process is ending.

    Raises:
        RankError: a rank is; rank 0 gets the message of every rank, the others that of rank 0.
    """
    status = MPI.Status()
    if _Process.ending and _Process.ending.Iprobe(MPI.ANY_SOURCE, ENDING_TAG, status):
        raise RankError(
            f"rank {status.source} of {world.size} has ended instead of starting the run that "
            f"rank {world.rank} starts; let every rank start the same runs, one after the other"
        )


def _end_with_process(world: MPI.Intracomm) -> None:
    """Collective: have the interpreter's end also end MPI, or, after an exception, all ranks."""
    _Process.ending = world.Dup()
    atexit.register(_end)
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Do not abort here: torch.distributed's hook calls this one, and prints afterwards.
        _Process.exit_code = INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1
        show(kind, error, trace)

    sys.excepthook = hook


def _end() -> None:
    """Collective: end MPI once every rank's process ends; after an exception, end all ranks.

    A rank that starts another run instead receives the message in ``start``, and raises.  Without
    it MPI_Finalize would wait for that rank for ever, deaf to signals and holding Python's lock.
    """
    comm = _Process.ending
    if comm and comm.size > 1 and _Process.exit_code and not MPI.Is_finalized():
        abort(MPI.COMM_WORLD, _Process.exit_code)
    # Where a group was not closed, other ranks may wait for this one.  Without MPI_Finalize the
    # launcher notices that this rank ended, and ends them.
    if comm is None or _Process.in_use or MPI.Is_finalized():
        return
    # Rank 0 exchanges a byte with every rank.
    others = range(1, comm.size) if comm.rank == 0 else range(1)
    byte = np.zeros(1, np.uint8)
    requests = [comm.Isend(byte, other, ENDING_TAG) for other in others]
    requests += [comm.Irecv(np.empty(1, np.uint8), other, ENDING_TAG) for other in others]
    try:
        for request in requests:
            _wait(request)
    except KeyboardInterrupt:
        abort(MPI.COMM_WORLD, INTERRUPTED)
    MPI.Finalize()


def local_rank(launch: Launch, world: MPI.Intracomm) -> tuple[int, bool]:
    """Collective: this rank's number on its host, and whether all ranks are on one host."""
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    rank = host.rank if launch.local_rank is None else launch.local_rank
    one_host = host.size == world.size
    host.Free()
    return rank, one_host


def bcast_text(world: MPI.Intracomm, text: str, failures: Failures | None = None) -> str:
    """Collective: rank 0's text; if a rank fails meanwhile, end with that rank's exit code."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    length = np.array([data.size], dtype=np.int64)
    _wait(world.Ibcast(length), failures)
    payload = data.copy() if world.rank == 0 else np.empty(length[0], dtype=np.uint8)
    _wait(world.Ibcast(payload), failures)
    return payload.tobytes().decode()


def abort(world: MPI.Intracomm, code: int) -> NoReturn:
    """End every rank with exit code ``code``, once the launcher has read this rank's output."""
    wait_until_read()
    world.Abort(code)
    end_process(code)  # MPICH's Abort may return while the launcher is still ending the ranks
