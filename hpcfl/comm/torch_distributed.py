"""Groups of ranks over torch.distributed: Gloo through host memory, NCCL between GPUs."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import ClassVar, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hpcfl.comm.base import P2PMessage
from hpcfl.comm.launcher import Launch
from hpcfl.comm.rendezvous import INTERFACE, meet
from hpcfl.comm.staging import StagedExchange
from hpcfl.errors import JobError, RankError

LATER = 1.25  # times the time-out: torch's own comes after the watchdog's, which says more

_GROUPS = count()  # of this process; every rank starts the same ones


class _ProcessGroup:
    """What both backends share; small host values travel where the backend's tensors live."""

    backend: ClassVar[str]

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        self._meeting = meet(launch, self.backend, timeout_s)
        # torchrun keeps the store when it starts ranks again, and so does a process that plays
        # several runs.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"hpcfl/{attempt}/{next(_GROUPS)}", self._meeting.store)
        self.rank, self.size = launch.rank, launch.size
        self.local_rank = self._meeting.local_rank
        self.library = self.backend
        self._summed, self._gathered = False, 0
        with _loopback(self._meeting.alone):
            try:
                dist.init_process_group(
                    self.backend,
                    store=self._store,
                    rank=launch.rank,
                    world_size=launch.size,
                    timeout=timedelta(seconds=LATER * timeout_s),
                )
            except RuntimeError as error:  # DistError, too, is one
                raise RankError(
                    f"rank {self.rank} of {self.size}: {self.backend}: the ranks do not meet "
                    f"({str(error).splitlines()[0]}); another rank has ended or hangs "
                    "(comm.timeout_s)"
                ) from error

    def _device(self) -> torch.device:
        return torch.device("cpu")

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` (contiguous) by its sum."""
        self._all(lambda: dist.all_reduce(tensor, dist.ReduceOp.SUM))

    def allreduce_max(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Collective: the elementwise maximum."""
        out = torch.tensor(values, device=self._device())
        self._all(lambda: dist.all_reduce(out, dist.ReduceOp.MAX))
        result: NDArray[np.float64] = out.numpy(force=True)
        return result

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: fill the room in ``received`` with what other ranks send."""
        freight = StagedExchange(sent, received, self._device())
        steps = [dist.P2POp(dist.irecv, room, rank) for rank, room in freight.received]
        steps += [dist.P2POp(dist.isend, data, rank) for rank, data in freight.sent]

        def travel() -> None:
            for work in dist.batch_isend_irecv(steps):
                work.wait()

        if steps:
            self._all(travel)
        freight.deliver()

    def bcast(self, text: str) -> str:
        """Collective: rank 0's text."""
        data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self._device())
        length = torch.tensor([data.numel()], device=self._device())
        self._all(lambda: dist.broadcast(length, 0))
        payload = data if self.rank == 0 else data.new_empty(int(length.item()))
        if length.item():
            self._all(lambda: dist.broadcast(payload, 0))
        return bytes(payload.tolist()).decode()

    def allgather(self, text: str) -> list[str]:
        """Collective: every rank's text, by rank; through the store.

        It needs no GPU, so it works, and the group can be left, where NCCL would not.
        """
        self._gathered += 1
        store = PrefixStore(f"{self._gathered}", self._store)
        ranks = range(self.size)
        try:
            store.set(f"text/{self.rank}", text)
            if self.rank == 0:
                store.set("texts", json.dumps([store.get(f"text/{r}").decode() for r in ranks]))
            texts: list[str] = json.loads(store.get("texts"))
            store.set(f"read/{self.rank}", "")
            if self.rank == 0:  # with whom the store goes
                store.wait([f"read/{rank}" for rank in ranks])
        except dist.DistError as error:
            raise RankError(
                f"rank {self.rank} of {self.size}: {self.backend}: the ranks do not meet "
                f"({str(error).splitlines()[0]}); another rank has ended or hangs "
                "(comm.timeout_s)"
            ) from error
        return texts

    def barrier(self) -> None:
        """Collective: wait for every rank."""
        self.allreduce_max(np.zeros(1))

    def close(self) -> None:
        """Collective: leave the group; rank 0's store outlives every use of it."""
        if self._summed:
            self.barrier()
        dist.destroy_process_group()
        self._meeting.finish()

    def abort(self, code: int) -> NoReturn:
        """End every rank (this one, if no MPI is there to end the others) with ``code``."""
        self._meeting.abort(code)

    def _all(self, collective: Callable[[], object]) -> None:
        self._summed = True
        try:
            collective()
        except RuntimeError as error:  # torch has no narrower one for a timeout or a lost peer
            cause = str(error).split("\n")[0]
            message = f"rank {self.rank} of {self.size}: {self.backend}: {cause}"
            raise RankError(
                f"{message}; another rank has ended or hangs (comm.timeout_s)"
            ) from error


@contextmanager
def _loopback(alone: bool) -> Iterator[None]:
    """Let Gloo listen to this host only, if all ranks are there and the user says nothing else."""
    if not alone or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = "lo0" if sys.platform == "darwin" else "lo"
    try:
        yield
    finally:
        del os.environ[INTERFACE]


class Gloo(_ProcessGroup):
    """Ranks over TCP; ``GLOO_SOCKET_IFNAME`` names the network interface where it must be told."""

    backend = "gloo"


class Nccl(_ProcessGroup):
    """Ranks with one GPU each; ``torch.cuda.set_device`` comes before the first collective.

    Small host values are reduced on the GPU too: the maximum waits for the GPU anyhow, and a
    companion Gloo group would need a second network set up on every cluster.
    """

    backend = "nccl"

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        if not dist.is_nccl_available():
            raise JobError("comm.backend: nccl: this torch was built without NCCL; say gloo")
        super().__init__(launch, timeout_s)

    def allreduce_sum(self, tensor: Tensor) -> None:
        """Collective: replace ``tensor`` (contiguous) by its sum, and wait for it.

        NCCL only queues the sum; the wait for the other ranks belongs here, where it is watched.
        """
        super().allreduce_sum(tensor)
        torch.cuda.current_stream().synchronize()

    def exchange(self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage]) -> None:
        """Collective: fill the room in ``received`` with what other ranks send; wait for it."""
        super().exchange(sent, received)
        torch.cuda.current_stream().synchronize()

    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())
