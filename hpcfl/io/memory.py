"""The memory that this process takes, and that the machine has free, on Linux."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.filesize import decimal

from hpcfl.errors import JobError

PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# The limit, the use and the reclaimable part of it, in version 2 and 1 of Linux's cgroups.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SMALL = 1 << 20  # bytes that need no look at the machine


def free_memory() -> int | None:
    """Bytes that may still be taken, or None where the system does not say."""
    try:
        return min([number(PROC / "meminfo", "MemAvailable:") * 1024, *_left_in_cgroups()])
    except OSError:
        return None


def too_little_memory(needed: int) -> int | None:
    """Bytes that are free, where they are fewer than ``needed``; None where memory suffices.

    None also where the system does not say.
    """
    free = free_memory() if needed > _SMALL else None
    return free if free is not None and needed > free else None


def refuse_large_job(key: str, what: str, needed: int) -> None:
    """Refuse what a job asks for and this machine cannot hold in memory, before it is made.

    Args:
        key: of the job, which makes it so large.
        what: it is.
        needed: bytes.

    Raises:
        JobError: more is needed than is free.
    """
    free = too_little_memory(needed)
    if free is not None:
        raise JobError(
            f"{key}: {what} needs {decimal(needed)} of memory, found {decimal(free)} free; lower "
            "it, or take a machine with more memory"
        )


def resident_memory() -> int:
    """Bytes that this process takes in memory now; 0 where the system does not say."""
    try:
        # At every round: a quarter of the time of `Path.read_text`.
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def allocated_memory(device: torch.device) -> int:
    """Bytes that tensors took on a GPU at most so far; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def number(path: Path, name: str) -> int:
    """The number behind ``name`` in a file of such lines; 0 where it is absent."""
    for line in path.read_text().splitlines():
        if line.startswith((f"{name} ", f"{name}\t")):
            return int(line.split()[1])
    return 0


def _left_in_cgroups() -> Iterator[int]:
    """What the limits of this process's control groups leave, such as Slurm's of a job."""
    for line in (PROC / "self/cgroup").read_text().splitlines():
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
                yield int(text) - taken + number(folder / "memory.stat", reclaimable)
