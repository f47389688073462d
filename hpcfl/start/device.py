"""Choose the device of a rank, configure torch for it, and warn where it is slow at bfloat16."""

import ctypes
import json
import socket
import warnings
from time import perf_counter
from typing import Literal

import torch
from torch.utils import deterministic

from hpcfl.comm.base import Comm
from hpcfl.errors import JobError
from hpcfl.io.boot_id import boot_id
from hpcfl.io.cgroups import usable_cores
from hpcfl.io.memory import return_freed_memory
from hpcfl.job.schema import Job


def device_type(job: Job) -> Literal["cpu", "cuda"]:
    """The type of device that the job computes on; ``device_of`` checks that there is one."""
    return "cpu" if job.device == "cpu" or not torch.cuda.is_available() else "cuda"


def gpu_rank(job: Job, comm: Comm) -> int:
    """Collective: this rank's number among the ranks of its host that see the same GPUs.

    A launcher may show all GPUs of a host to each of its ranks, one to each, or to the ranks near a
    processor those near it (Slurm's --gpu-bind=closest).
    """
    cuda = device_type(job) == "cuda"
    gpus = range(torch.cuda.device_count() if cuda else 0)
    seen = [str(torch.cuda.get_device_properties(gpu).uuid) for gpu in gpus]
    own = json.dumps([socket.gethostname(), boot_id(), seen])
    return comm.allgather(own)[: comm.rank].count(own)


def device_of(job: Job, gpu_rank: int) -> torch.device:
    """The device of a rank: the GPU of that number, or the only one that it sees.

    Args:
        job: the job.
        gpu_rank: see the function ``gpu_rank``.

    Raises:
        JobError: the job asks for a GPU or a precision that is not there.
    """
    if device_type(job) == "cpu":
        if job.device == "cuda":
            raise JobError("device: found no GPU, but the job says cuda; say cpu or auto")
        if job.precision == "tf32":
            raise JobError("precision: tf32 needs a GPU; say float32 or bf16 on a CPU")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 1:  # as Slurm's --gpus-per-task shows it to every rank
        return torch.device("cuda", 0)
    if gpu_rank >= count:
        raise JobError(
            f"device: {gpu_rank + 1} or more ranks of this host see the same {count} GPUs, and "
            "each needs one of its own; start fewer ranks per host"
        )
    return torch.device("cuda", gpu_rank)


def configure_torch(job: Job, device: torch.device) -> None:
    """Set torch's state in this process: threads, precision, deterministic kernels."""
    share_one_heap()
    # Fewer only where a job for another machine is checked: a run with too few cores is refused.
    torch.set_num_threads(min(job.threads, len(usable_cores())))
    # use_deterministic_algorithms(True) would import the compiler too: a second and 70 MB.
    torch.set_deterministic_debug_mode("error")
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, hides nothing here
    # It is for evaluation alone, and has zeros at padding: another function than is trained.
    torch.backends.mha.set_fastpath_enabled(False)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False  # it chooses kernels by their times
        tf32 = job.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        # The parameters are views of one vector in the order of their names, which is not cuDNN's:
        # it copies the weights of an nn.LSTM in every call, and warns of that.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")


# Parameters of glibc's mallopt; other C libraries are left as they are.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_OF_START, _OF_ROUNDS = 1 << 25, 1 << 30  # bytes from which a block is mapped on its own


def share_one_heap() -> None:
    """Let all threads share one heap, or each would keep the memory that it once needed.

    Until the rounds, blocks of the size of a large model are returned when they are freed: what a
    start needs at once would lie in pieces between those of a round.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        if mallopt(_MMAP_THRESHOLD, _OF_ROUNDS):  # else it could not be raised later
            mallopt(_MMAP_THRESHOLD, _OF_START)


def keep_freed_memory() -> None:
    """From here on let the C library reuse large blocks instead of returning them to the system.

    A convolution's activations are freed and allocated again at every step; the page faults would
    take a quarter of LeNet's step.  What the start has freed is returned first.
    """
    return_freed_memory()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _OF_ROUNDS)


# A matrix product of this size takes 0.4 ms in float32, and 30 ms in the slowest bfloat16 seen.
_MEASURED_SIZE = 256
_MEASURED_TIMES = 3
_SLOW = 1.5


def bfloat16_warning(job: Job, device: torch.device) -> str | None:
    """A line of warning if the job computes in bfloat16 on a processor that is slow at it.

    Without bfloat16 instructions (x86: AVX512-BF16 or AMX) every product is converted or emulated.
    This is measured, because neither a processor's name nor torch's flags show it everywhere.
    """
    if job.precision != "bf16" or device.type != "cpu":
        return None
    slowdown = _bfloat16_slowdown()
    if slowdown < _SLOW:
        return None
    return (
        f"precision: bf16 is slow on this processor: a matrix product takes {slowdown:.1f} times "
        "as long as in float32; say precision=float32, or use a processor with bfloat16 "
        "instructions (avx512_bf16 or amx_bf16 in lscpu)"
    )


def _bfloat16_slowdown() -> float:
    """The time of a matrix product in bfloat16 over that in float32, the fastest of a few each."""
    ones = torch.ones(_MEASURED_SIZE, _MEASURED_SIZE)
    seconds: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    for _ in range(_MEASURED_TIMES + 1):  # the first of each prepares the kernel
        for dtype, taken in seconds.items():
            factor = ones.to(dtype)
            began = perf_counter()
            torch.mm(factor, factor)
            taken.append(perf_counter() - began)
    return min(seconds[torch.bfloat16][1:]) / min(seconds[torch.float32][1:])
