"""What this machine has room for: cores, GPUs, memory."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# The limit, the use and the reclaimable part of it, in version 2 and 1 of Linux's cgroups.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


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


def free_memory() -> int | None:
    """Bytes that may still be taken, or None where the system does not say."""
    try:
        free = [_field(_PROC / "meminfo", "MemAvailable:") * 1024]
    except OSError:
        return None
    return min(free + list(_left_in_cgroups()))


def memory(process: int) -> int:
    """Resident bytes of a process and those it started; 0 for one that has ended."""
    try:
        own = _field(_PROC / str(process) / "status", "VmRSS:") * 1024
        children = (_PROC / f"{process}/task/{process}/children").read_text().split()
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


def _left_in_cgroups() -> Iterator[int]:
    """What the limits of this process's control groups leave, such as Slurm's of a job."""
    for line in (_PROC / "self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUPS / controllers
        limit, use, reclaimable = _V1 if controllers else _V2
        own = root / name.lstrip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            text = (folder / limit).read_text().strip() if (folder / limit).is_file() else "max"
            if text != "max":
                taken = int((folder / use).read_text())
                yield int(text) - taken + _field(folder / "memory.stat", reclaimable)


def _field(path: Path, name: str) -> int:
    """The number behind ``name`` in a file of such lines; 0 where it is absent."""
    for line in path.read_text().splitlines():
        if line.startswith((f"{name} ", f"{name}\t")):
            return int(line.split()[1])
    return 0
