"""Count the cores and the GPUs that this process may use."""

import math
import os

import torch

from hpcfl.io.cgroups import core_quotas, usable_cores


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
