"""Collect the versions and hardware that change a run's bits: libraries, processor, device."""

import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

import torch

from hpcfl.io.version import __version__
from hpcfl.local.triton_kernels.blocks import VERSION

# A change of one of these between two starts may change the bits of the results.
KEYS_OF_BITS = (
    *("hpcfl", "python", "torch", "numpy", "h5py", "mpi4py"),
    *("processor", "simd", "device", "gpu", "cuda", "cudnn", "triton"),
)
# With ``reduction: fast`` also the number of ranks, and the library that sums.
KEYS_OF_FAST_BITS = ("ranks", "summed_by")

_FOLDERS = re.compile(r"^\w+(?=[./])", re.MULTILINE)


def versions(device: torch.device) -> dict[str, Any]:
    """The versions of libraries, and the names of the processor and of the GPU."""
    found: dict[str, Any] = {"hpcfl": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "h5py", "mpi4py"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found["git"] = _git_commit()
    found["processor"] = processor()
    # A virtual machine may hide instructions that the processor's name promises.
    found["simd"] = torch.backends.cpu.get_cpu_capability()
    found["device"] = device.type
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found


def packages() -> dict[str, str]:
    """The versions of the installed packages that this process has imported, by name."""
    imported, found = {name.partition(".")[0] for name in sys.modules}, dict[str, str]()
    changed = []
    for folder in sys.path:
        with suppress(OSError):
            changed.append((folder, Path(folder).stat().st_mtime_ns))
    for package, folders in _installed(tuple(changed)):
        if not imported.isdisjoint(folders):
            found.setdefault(package.name, package.version)
    return dict(sorted(found.items()))


@lru_cache(maxsize=1)
def _installed(
    _changed: tuple[tuple[str, int], ...],
) -> list[tuple[Distribution, frozenset[str]]]:
    """Every installed package, and its folders.

    They are read again once a folder of sys.path has changed: that takes a tenth of a second, and
    longer on a file system that many processes use.
    """
    # The files of a package, each at the beginning of a line; metadata.files takes much longer.
    return [
        (package, frozenset(_FOLDERS.findall(package.read_text("RECORD") or "")))
        for package in distributions()
        if package.name  # a broken one may have none
    ]


def triton_version() -> str:
    """The versions of Triton and of the table of block sizes, for a run that computes by it."""
    from triton import __version__ as installed

    return f"{installed}, table {VERSION}"


def change_warnings(
    before: Mapping[str, Any], now: Mapping[str, Any], keys: Sequence[str]
) -> list[str]:
    """A line for each of ``keys`` whose value changed between two starts."""
    return [
        f"{key} was {before[key]}, is {now[key]}: the bits may differ from those of an "
        "uninterrupted run"
        for key in keys
        if key in before and key in now and before[key] != now[key]
    ]


@cache
def _git_commit() -> str | None:
    """The commit of the checkout that hpcfl runs from, "-dirty" if changed; None without one.

    It is asked for once, because the modules of this process stay those that it has imported.
    """
    here = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(here), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        return done.stdout.strip()

    try:
        if git("rev-parse", "--show-toplevel") != str(here):
            return None  # an installed package, perhaps inside another checkout
        commit = git("rev-parse", "HEAD")
        return commit + ("-dirty" if git("status", "--porcelain", "-uno") else "") or None
    except OSError:
        return None


def processor() -> str:
    """The name of this host's processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
