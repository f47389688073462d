"""Groups of ranks over torch.distributed: Gloo through host memory, NCCL between GPUs."""

import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.comm.base import LastWord, P2PMessage
from hpcfl.comm.in_time import LAST_S, in_time
from hpcfl.comm.launcher import Launch
from hpcfl.comm.meeting import TIMEOUT_FACTOR, meet
from hpcfl.comm.rendezvous import INTERFACE, POLL_S
from hpcfl.comm.staging import StagedExchange
from hpcfl.errors import JobError, RankError
from hpcfl.io.heartbeat import LOST_CODE

ABORTED = "aborted"  # the key of the word of the rank that has left by ``abort``
FIRST_PAUSE_S = 1e-3  # before the second look for ranks that have not come

NCCL_CAUSE = re.compile(r"Last error:\s*\n(.*\S.*)")
# Algorithms that add in the network switch, in an order that differs from call to call.  torch
# leaves them out in its deterministic mode, which is set later, once the device is known.
NCCL_REPRODUCIBLE = "^NVLS,NVLSTree"


class _ProcessGroup:
    """The common part of Gloo and NCCL; small host values are sent from the backend's device."""

    backend: ClassVar[str]
    aborts_all = False

    def __init__(self, launch: Launch, timeout_s: float, run: Path) -> None:
        met = meet(launch, self.backend, timeout_s, run)
        self._connection, self._texts = met.connection, met.texts
        self.rank, self.size = launch.rank, launch.size
        self.local_rank = self._connection.local_rank
        self.library = self.backend
        self._used, self._gathered, self._waits, self._broadcasts = False, 0, 0, 0
        self._joined = False
        """Whether torch's process group is there."""
        self._lost = False
        """Whether the store is gone."""
        self._limit_s = TIMEOUT_FACTOR * timeout_s

    def _join(self, gpu: torch.device | None = None) -> None:
        """Collective: make torch's process group, and for a GPU NCCL's communicator.

        Raises:
            RuntimeError: torch or NCCL fails; DistError is a subclass.
            TimeoutError: another rank does not come.
        """

        def init() -> None:
            dist.init_process_group(
                self.backend,
                store=self._texts.of_torch,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self._limit_s),
                device_id=gpu,
            )

        in_time(self._limit_s + LAST_S, init)  # torch and NCCL wait for a stopped rank for ever
        self._joined = True

    def _device(self) -> torch.device:
        return torch.device("cpu")

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` (contiguous) by its sum."""
        self._run(lambda: dist.all_reduce(tensor, dist.ReduceOp.SUM))

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Collective: the elementwise maximum."""
        out = torch.tensor(values, device=self._device())
        self._run(lambda: dist.all_reduce(out, dist.ReduceOp.MAX))
        # NCCL waits for the other ranks here.  cpu() does so without Python's lock, which the
        # watchdog's thread needs; numpy() by force would hold it.
        result: NDArray[np.float64] = out.cpu().numpy()
        return result

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: send tensors to other ranks, and fill the buffers in ``received``."""
        staged = StagedExchange(sent, received, self._device())
        operations = [dist.P2POp(dist.irecv, data, rank) for rank, data in staged.received]
        operations += [dist.P2POp(dist.isend, data, rank) for rank, data in staged.sent]

        def send_and_receive() -> None:
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        if operations:
            self._run(send_and_receive)
        staged.deliver()

    def bcast(self, text: str) -> str:
        """Collective: rank 0's text."""
        self._broadcasts += 1
        key = f"broadcast/{self._broadcasts}"
        sent = self._texts.seal(key, text.encode())
        data = torch.tensor(list(sent), dtype=torch.uint8, device=self._device())
        length = torch.tensor([data.numel()], device=self._device())
        self._run(lambda: dist.broadcast(length, 0))
        payload = data if self.rank == 0 else data.new_empty(int(length.item()))
        self._run(lambda: dist.broadcast(payload, 0))
        return self._texts.unseal(key, bytes(payload.tolist())).decode()

    def allgather(self, text: str) -> list[str]:
        """Collective: every rank's text, by rank.

        It uses the store and no GPU, so ranks can report an error where NCCL does not work.  Rank
        0 compresses the texts, which are much alike: its store sends all of them to every rank.
        """
        self._gathered += 1
        store = self._texts.below(f"gathered/{self._gathered}")
        ranks = range(self.size)
        try:
            store.set(f"text/{self.rank}", text.encode())
            if self.rank == 0:
                whole = json.dumps([store.get(f"text/{r}").decode() for r in ranks])
                store.set("texts", zlib.compress(whole.encode()))
            texts: list[str] = json.loads(zlib.decompress(store.get("texts")))
            store.set(f"read/{self.rank}")
            if self.rank == 0:  # whose process holds the store, and may end after this
                store.wait([f"read/{rank}" for rank in ranks])
        except dist.DistError as error:
            raise self._not_met(error) from error
        return texts

    def barrier(self) -> None:
        """Collective: wait for every rank."""
        self.allreduce_max(np.zeros(1))

    def wait_for_ranks(self) -> None:
        """Collective: wait for every rank, however long it takes; a barrier has a time-out.

        It asks the store again and again, less and less often.

        Raises:
            RankError: a rank has left by ``abort``, or rank 0, which holds the store, has ended.
        """
        self._used = True  # rank 0 must not leave before the others have looked
        self._waits += 1
        store, pause = self._texts.below(f"waits/{self._waits}"), FIRST_PAUSE_S
        here, all_here = [f"{rank}" for rank in range(self.size)], ["all"]
        try:
            store.set(here[self.rank])
            while not store.check(here if self.rank == 0 else all_here):
                if self._texts.check([ABORTED]):
                    raise RankError(
                        f"rank {self.rank} of {self.size}: {self.backend}: rank "
                        f"{self._word().rank} has ended; its own message, if it printed one, is "
                        "above"
                    )
                time.sleep(pause)
                pause = min(2 * pause, POLL_S)
            if self.rank == 0:
                store.set(all_here[0])
        except dist.DistError as error:
            self._lost = True
            raise RankError(
                f"rank {self.rank} of {self.size}: {self.backend}: rank 0 has ended; its own "
                "message, if it printed one, is above"
            ) from error

    def close(self) -> None:
        """Collective: leave the group; the barrier keeps rank 0's store open until then."""
        if self._used:
            self.barrier()
        self._leave_group()
        self._connection.finish()

    def abort(self, code: int, reason: str = "") -> NoReturn:
        """End this rank with exit code ``code``, and under MPI every rank.

        Without MPI the launcher ends the others when it sees that this one failed; those in a
        collective end by themselves, by the word that this one leaves in the store.
        """
        if not self._lost:
            with suppress(RuntimeError, RankError, TimeoutError):
                in_time(LAST_S, lambda: self._leave_word(LastWord(self.rank, code, reason)))
        self._connection.abort(code)

    def last_word(self) -> LastWord | None:
        """That of the first rank that ended by ``abort``."""
        if self._lost:
            return None
        with suppress(dist.DistError, RankError, TimeoutError):
            return in_time(LAST_S, self._read_word)
        return None

    def _leave_word(self, word: LastWord) -> None:
        """Tell the others how this rank ended, unless one was quicker."""
        if self._texts.check([ABORTED]):
            return
        self._texts.set(ABORTED, json.dumps(word).encode())
        if self.rank == 0 and word.reason and word.code != LOST_CODE:
            # The store may end with this rank, and the others would not learn the code.  Without
            # its group they see that it has left, and ask.
            self._leave_group()
            self._texts.wait([f"{ABORTED}/{rank}" for rank in range(1, self.size)])

    def _leave_group(self) -> None:
        if self._joined:
            dist.destroy_process_group()

    def _read_word(self) -> LastWord | None:
        if not self._texts.check([ABORTED]):
            return None
        word = self._word()
        self._texts.set(f"{ABORTED}/{self.rank}")
        return word

    def _word(self) -> LastWord:
        return LastWord(*json.loads(self._texts.get(ABORTED)))

    def _not_met(self, error: Exception, *, prints: bool = False) -> RankError:
        return RankError(
            f"rank {self.rank} of {self.size}: {self.backend}: the ranks do not meet "
            f"({_cause(error)}); another rank has ended or hangs (comm.timeout_s)",
            prints=prints,
        )

    def _run(self, collective: Callable[[], object]) -> None:
        self._used = True
        try:
            collective()
        except RuntimeError as error:  # torch raises no narrower class for a time-out or lost rank
            message = f"rank {self.rank} of {self.size}: {self.backend}: {_cause(error)}"
            raise RankError(
                f"{message}; another rank has ended, hangs, or needs longer than comm.timeout_s: "
                "raise that"
            ) from error


def _cause(error: Exception) -> str:
    """The first line of an error of torch, with the line in which NCCL names the cause."""
    text = str(error) or type(error).__name__  # a TimeoutError says nothing
    found = NCCL_CAUSE.search(text)
    return text.split("\n")[0] + (f": {found[1].strip()}" if found else "")


@contextmanager
def _loopback(*, one_host: bool) -> Iterator[None]:
    """Let Gloo use the loopback interface if all ranks are on this host and the user set none."""
    if not one_host or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = "lo0" if sys.platform == "darwin" else "lo"
    try:
        yield
    finally:
        del os.environ[INTERFACE]


class Gloo(_ProcessGroup):
    """Ranks over TCP; the variable ``GLOO_SOCKET_IFNAME`` can name the network interface."""

    backend = "gloo"

    def __init__(self, launch: Launch, timeout_s: float, run: Path) -> None:
        super().__init__(launch, timeout_s, run)
        with _loopback(one_host=self._connection.one_host):
            try:
                self._join()
            except (RuntimeError, TimeoutError) as error:
                raise self._not_met(error, prints=True) from error  # rank 0 may be the lost one


class Nccl(_ProcessGroup):
    """Ranks with one GPU each; call ``torch.cuda.set_device`` before the first collective.

    That makes NCCL's communicator, and fails where NCCL does not work.  Only ``allgather`` and
    ``wait_for_ranks`` need no GPU: the ranks agree by them on which GPU each takes.

    Small host values are reduced on the GPU, too: the maximum waits for the GPU anyway, and a
    second group over Gloo would have to be configured on every cluster.

    Args:
        launch: of the ranks.
        timeout_s: see ``connect``.
        run: likewise.
        exact: whether all sums are exact in any order.  If not, NCCL's algorithms whose order
            differs from call to call are left out, unless the user has set ``NCCL_ALGO``.
    """

    backend = "nccl"

    def __init__(self, launch: Launch, timeout_s: float, run: Path, *, exact: bool = False) -> None:
        if not dist.is_nccl_available():
            raise JobError("comm.backend: nccl: this torch was built without NCCL; use gloo")
        if not exact:
            os.environ.setdefault("NCCL_ALGO", NCCL_REPRODUCIBLE)
        super().__init__(launch, timeout_s, run)

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` (contiguous) by its sum, and wait for it.

        NCCL only queues the sum.  The wait for the other ranks must happen here, where the
        watchdog counts the time.
        """
        super().allreduce_sum(tensor)
        torch.cuda.current_stream().synchronize()

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: send tensors to other ranks, fill the buffers in ``received``, and wait."""
        super().exchange(sent, received)
        torch.cuda.current_stream().synchronize()

    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def _run(self, collective: Callable[[], object]) -> None:
        if not self._joined:
            self._make_communicator()
        super()._run(collective)

    def _make_communicator(self) -> None:
        """Collective: join the group, with the communicator of the GPUs.

        If it did not know the GPU, torch would make the communicator in the first collective, where
        nothing limits how long NCCL waits for a rank.

        Raises:
            RankError: NCCL fails, or another rank does not come.
        """
        try:
            self._join(self._device())
        except (RuntimeError, TimeoutError) as error:
            raise RankError(
                f"rank {self.rank} of {self.size}: nccl: the communicator of the GPUs cannot be "
                f"made ({_cause(error)}); another rank has ended or hangs (comm.timeout_s), or "
                "NCCL does not work between these GPUs: NCCL_DEBUG=INFO shows why, "
                "comm.backend=gloo works without it"
            ) from error
