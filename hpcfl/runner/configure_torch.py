"""Configure what is global in this process: threads, precision, deterministic kernels, memory."""

import ctypes
import os

import torch
from torch.utils import deterministic

from hpcfl.job.schema import Job


def configure_torch(job: Job, device: torch.device) -> None:
    """Set what is global in torch: threads, precision, deterministic kernels."""
    keep_freed_memory()
    torch.set_num_threads(job.threads)
    # use_deterministic_algorithms(True) would import the compiler too: a second and 70 MB.
    torch.set_deterministic_debug_mode("error")
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, hides nothing here
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
        tf32 = job.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32


def keep_freed_memory() -> None:
    """Let the C library reuse large blocks of memory instead of returning them to the system.

    A convolution's activations are freed and wanted again at every step; faulting their pages in
    anew takes a quarter of LeNet's step.  All threads share what is free, or each would keep what
    it once needed.  Elsewhere than on glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold, arena_max, largest = -1, -3, -8, 2**31 - 1
        mallopt(arena_max, 1)
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, largest)
