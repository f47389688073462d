"""A rank of hpcfl on NCCL without a GPU: Gloo's collectives, queued on the fake device.

    nccl_stand_in.py SCRIPT ARGS

The rank sees as many fake GPUs as there are ranks.  As with NCCL

- a collective returns at once; until the host waits for the device its result holds NaN, or the
  largest integer;
- the host's wait lets go of Python's lock, but for ``numpy(force=True)``, as torch has it
  (``fake_cuda`` says which calls wait);
- a rank that is gone is not noticed: the host waits for ever.

Without ``device_id`` NCCL makes its communicator in the first collective, where it has no time
limit; here that is an error.  HPCFL_TEST_NCCL_ERROR is why the communicator cannot be made.
"""

import ctypes
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist  # noqa: TID251
from torch import Tensor

from tests.gpu.fake_cuda import Runtime, _plain, fake_cuda

POLL_US = 1000
LIBC = {True: ctypes.PyDLL(None), False: ctypes.CDLL(None)}  # the first keeps Python's lock


def install(gpu: Runtime) -> None:
    """Put the stand-in in the place of NCCL."""
    init, all_reduce, broadcast = dist.init_process_group, dist.all_reduce, dist.broadcast

    def queue(start: Callable[[Tensor], dist.Work], tensor: Tensor, *, sent: bool = False) -> None:
        """Start a collective of Gloo, which has the values that the tensor holds now."""
        memory = _plain(tensor)
        values = memory.clone()
        work = start(values)
        if not sent:
            large = torch.nan if memory.is_floating_point() else torch.iinfo(memory.dtype).max
            memory.fill_(large)

        def end(locked: bool) -> None:
            wait_for(work, locked)
            if not sent:
                memory.copy_(values)

        gpu.collectives.append(end)

    def init_process_group(backend: str, *, device_id: torch.device, **how: Any) -> None:
        assert (backend, device_id) == ("nccl", gpu.device)
        if "HPCFL_TEST_NCCL_ERROR" in os.environ:
            raise dist.DistBackendError(os.environ["HPCFL_TEST_NCCL_ERROR"])
        init("gloo", **how)

    def batch_isend_irecv(operations: Sequence[dist.P2POp]) -> list[dist.Work]:
        for one in operations:
            queue(lambda values, o=one: o.op(values, o.peer), one.tensor, sent=one.op is dist.isend)
        return []

    dist.is_nccl_available = lambda: True
    dist.init_process_group = init_process_group
    dist.all_reduce = lambda tensor, op: queue(
        lambda values: all_reduce(values, op, async_op=True), tensor
    )
    dist.broadcast = lambda tensor, src: queue(
        lambda values: broadcast(values, src, async_op=True), tensor
    )
    dist.batch_isend_irecv = batch_isend_irecv


def wait_for(work: dist.Work, locked: bool) -> None:
    """Wait until Gloo has done it; with a lost rank for ever."""
    libc, interval = LIBC[locked], sys.getswitchinterval()
    if locked:
        sys.setswitchinterval(1e6)  # or another thread would get the lock between two calls
        while not work.is_completed():
            libc.usleep(POLL_US)
    try:
        work.wait()  # without the lock
    except RuntimeError:
        while True:
            libc.usleep(POLL_US)
    sys.setswitchinterval(interval)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with fake_cuda(int(os.environ.get("WORLD_SIZE", "1"))) as runtime:
        install(runtime)
        runpy.run_path(sys.argv[0], run_name="__main__")
