"""What this machine has room for: cores, GPUs, and the memory of runs."""

import os
from collections.abc import Iterable

import torch

from hpcfl.memory import PROC, number


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return named[:count] if named != [""] else [str(gpu) for gpu in range(count)]


def memory(process: int) -> int:
    """Resident bytes of a process and those it started; 0 for one that has ended."""
    try:
        own = number(PROC / str(process) / "status", "VmRSS:") * 1024
        children = (PROC / f"{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0
    return own + sum(memory(int(child)) for child in children)


def room(free: int, need: int, taken: Iterable[int]) -> bool:
    """Whether one more run fits.

    Args:
        free: bytes that may still be taken.
        need: what a run takes at its largest.
        taken: what each of the present runs takes so far; the rest of its need is kept for it.
    """
    return free - sum(max(0, need - own) for own in taken) >= need
