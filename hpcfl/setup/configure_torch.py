"""Configure this process: threads, precision, deterministic kernels, memory."""

import ctypes
import warnings

import torch
from torch.utils import deterministic

from hpcfl.io.cgroups import usable_cores
from hpcfl.job.schema import Job


def configure_torch(job: Job, device: torch.device) -> None:
    """Set torch's global state: threads, precision, deterministic kernels."""
    keep_freed_memory()
    # Fewer only where a job for another machine is checked: a run with too few cores is refused.
    torch.set_num_threads(min(job.threads, len(usable_cores())))
    # use_deterministic_algorithms(True) would import the compiler too: a second and 70 MB.
    torch.set_deterministic_debug_mode("error")
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, hides nothing here
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False  # it chooses kernels by their times
        tf32 = job.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        # The parameters are views of one vector in the order of their names, which is not cuDNN's:
        # it copies the weights of an nn.LSTM in every call, and warns of that.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")


def keep_freed_memory() -> None:
    """Let the C library reuse large blocks of memory instead of returning them to the system.

    A convolution's activations are freed and allocated again at every step; the page faults would
    take a quarter of LeNet's step.  All threads share one arena, or each would keep the memory
    that it once needed.  Only glibc is configured.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold, arena_max, largest = -1, -3, -8, 2**31 - 1
        mallopt(arena_max, 1)
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, largest)
