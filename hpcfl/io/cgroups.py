"""The control groups of this process, by which Slurm and containers limit memory and cores."""

import os
from collections.abc import Iterator
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def control_groups(controller: str) -> Iterator[tuple[int, Path]]:
    """The version (1 or 2) and the folder of each group that may limit this process.

    Args:
        controller: of version 1: "memory", "cpu".

    Raises:
        OSError: the system has no control groups.
    """
    for line in _OWN.read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _MOUNT / controllers
        own = root / name.lstrip("/")
        for folder in (own, *own.parents):  # in a container the first may not exist
            if not folder.is_relative_to(root):
                break
            yield 1 if controllers else 2, folder


def core_quotas() -> Iterator[float]:
    """How many cores' time each group of this process may use; nothing for one without a limit."""
    try:
        for version, folder in control_groups("cpu"):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
            files = [folder / name for name in names]
            if all(file.is_file() for file in files):
                quota, period = " ".join(file.read_text() for file in files).split()
                if quota not in ("max", "-1"):
                    yield int(quota) / int(period)
    except OSError:
        return


def usable_cores() -> list[int]:
    """The cores that this process may use: those that it is bound to, where the system binds it."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
