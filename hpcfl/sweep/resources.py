"""The cores and GPUs of this machine, the memory of processes, and whether one more run fits."""

import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from hpcfl.io.cgroups import core_quotas, usable_cores
from hpcfl.io.memory import PROC, number


def cores() -> int:
    """How many cores this process may use, whether or not it is bound to them."""
    found = [len(usable_cores())]
    # Of the step, or of the batch script outside of one.  SLURM_CPUS_PER_TASK would be too few
    # there: a sweep is one task, and may use those of all tasks.
    if (allocated := os.environ.get("SLURM_CPUS_ON_NODE", "")).isdigit():
        found.append(int(allocated))
    return max(1, min([*found, *map(math.ceil, core_quotas())]))


def gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(name.startswith("MIG-") for name in named):
        return named  # of these CUDA shows each process the first alone
    return named[:count] if named != [""] else [str(gpu) for gpu in range(count)]


class Process(NamedTuple):
    """A process, as /proc describes it."""

    command: Sequence[str]
    memory: int
    """Resident bytes."""


def process_tree(process: int) -> list[Process]:
    """A process and all that it started; empty where /proc does not exist."""
    root = PROC / str(process)
    try:
        memory = number(root / "status", "VmRSS:") * 1024
        command = os.fsdecode((root / "cmdline").read_bytes()).split("\0")[:-1]
        children = (root / f"task/{process}/children").read_text().split()
    except OSError:
        return []
    found = [Process(command, memory)]
    for child in children:
        found += process_tree(int(child))
    return found


def one_more_fits(free: int, need: int, taken: Iterable[int]) -> bool:
    """Whether one more run fits.

    Args:
        free: bytes of free memory.
        need: bytes that a run needs at most.
        taken: bytes that each present run has now; the rest of its need is reserved for it.
    """
    return free - sum(max(0, need - own) for own in taken) >= need
