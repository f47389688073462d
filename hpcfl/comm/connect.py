"""Connect this process to the group of all ranks, by MPI, Gloo or NCCL."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hpcfl.comm.base import Group
from hpcfl.comm.launcher import Launch, detect
from hpcfl.comm.load_mpi import load_mpi
from hpcfl.comm.solo import Solo
from hpcfl.errors import JobError
from hpcfl.io.packages import refuse_shadow

Backend = Literal["auto", "mpi", "gloo", "nccl"]


def connect(
    backend: Backend, device_type: str, timeout_s: float, run: Path, *, exact: bool = False
) -> Group:
    """Collective: the group of all launched ranks.

    "auto" uses nccl for ranks with GPUs; for ranks on CPUs mpi, if mpi4py is installed and the
    launcher is not torchrun, else gloo; a single process needs no library.  A backend that the job
    names is used or refused, never replaced.

    Args:
        backend: the job's choice.
        device_type: "cpu" or "cuda": of the tensors that are summed.
        timeout_s: how long Gloo and NCCL wait for other ranks at the start, and a little less than
            they wait later; also how long, under Slurm, a rank of MPI that fails waits until the
            others know it.
        run: the run directory, which need not be there; ranks that start without MPI share a secret
            by a file in it, or in the nearest folder above it.
        exact: whether all sums are exact in any order, as those of integers are.

    Raises:
        JobError: the backend cannot work here, or the file cannot be made.
        DiskError: the disk is full or fails.
        RankError: launcher and library disagree on the ranks, or the ranks cannot connect.
    """
    launch = detect(os.environ)
    if backend == "auto":
        if launch.size == 1:
            return Solo()
        backend, _ = choose(launch, device_type)
    if backend == "mpi":
        if device_type != "cpu":
            message = f"comm.backend: mpi sums CPU tensors, the device is {device_type}"
            raise JobError(f"{message}; use nccl (or gloo)")
        group: Group = load_mpi("comm.backend: mpi", "use gloo").Mpi(launch, timeout_s)
        return group
    from hpcfl.comm.torch_distributed import Gloo, Nccl

    if backend == "gloo":
        return Gloo(launch, timeout_s, run)
    if device_type != "cuda":
        raise JobError(f"comm.backend: nccl sums GPU tensors, the device is {device_type}")
    return Nccl(launch, timeout_s, run, exact=exact)


def choose(launch: Launch, device_type: str) -> tuple[Literal["mpi", "gloo", "nccl"], str]:
    """The backend that "auto" uses for several ranks, and the reason in words."""
    if device_type == "cuda":
        return "nccl", "the ranks have GPUs"
    if launch.launcher == "torchrun":
        return "gloo", "torchrun started ranks on CPUs"
    refuse_shadow("mpi4py")
    if find_spec("mpi4py") is None:
        return "gloo", "the ranks are on CPUs, and mpi4py is not installed"
    return "mpi", "the ranks are on CPUs, and mpi4py is installed"
