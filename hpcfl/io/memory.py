"""Measure the memory of this process and the free memory of the machine, on Linux."""

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from hpcfl.errors import JobError
from hpcfl.io.cgroups import control_groups

PROC = Path("/proc")
# The files of limit and use, and the key of the reclaimable part, in versions 2 and 1 of cgroups.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SMALL = 1 << 20  # bytes; less is never compared with the free memory


def free_memory() -> int | None:
    """Bytes that this process may still allocate; None if the system does not tell."""
    try:
        return min([number(PROC / "meminfo", "MemAvailable:") * 1024, *_left_in_cgroups()])
    except OSError:
        return None


def too_little_memory(needed: int) -> int | None:
    """The free bytes if they are fewer than ``needed``; None if they suffice or are unknown."""
    free = free_memory() if needed > _SMALL else None
    return free if free is not None and needed > free else None


def refuse_large_job(key: str, what: str, needed: int) -> None:
    """Refuse a job that needs more memory than this machine has free.

    Args:
        key: the job's key that makes the object so large.
        what: the object, in words.
        needed: its bytes.

    Raises:
        JobError: less is free.
    """
    free = too_little_memory(needed)
    if free is not None:
        raise JobError(
            f"{key}: {what} needs {decimal(needed)} of memory, found {decimal(free)} free; lower "
            "it, or take a machine with more memory"
        )


def return_freed_memory() -> None:
    """Return memory that this process has freed to the system, which libraries keep for it.

    Of the C library only glibc can; pyarrow, where it was imported, has memory of its own.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()


def resident_memory() -> int:
    """Bytes of memory that this process occupies now; 0 if the system does not tell."""
    try:
        # Called in every round: this takes a quarter of the time of ``Path.read_text``.
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def peak_memory() -> int:
    """Bytes of memory that this process occupied at most so far; 0 if the system does not tell."""
    try:
        return 1024 * number(PROC / "self/status", "VmHWM:")  # containers leave lines out
    except OSError:
        return 0


def number(path: Path, name: str) -> int:
    """The number after ``name`` in a file of such lines; 0 if there is none."""
    for line in path.read_text().splitlines():
        if line.startswith((f"{name} ", f"{name}\t")):
            return int(line.split()[1])
    return 0


def _left_in_cgroups() -> Iterator[int]:
    """Free bytes within each limit of this process's control groups (Slurm limits jobs by them)."""
    for version, folder in control_groups("memory"):
        limit, use, reclaimable = _V1 if version == 1 else _V2
        text = (folder / limit).read_text().strip() if (folder / limit).is_file() else "max"
        if text != "max":
            taken = int((folder / use).read_text())
            yield int(text) - taken + number(folder / "memory.stat", reclaimable)
