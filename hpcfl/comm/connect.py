"""Connect this process to the group of all ranks, by MPI, Gloo or NCCL."""

import os
from importlib.util import find_spec
from typing import Literal

from hpcfl.comm.base import Comm
from hpcfl.comm.launcher import Launch, detect
from hpcfl.comm.load_mpi import load_mpi
from hpcfl.comm.solo import Solo
from hpcfl.errors import JobError

Backend = Literal["auto", "mpi", "gloo", "nccl"]


def connect(backend: Backend, device_type: str, timeout_s: float) -> Comm:
    """Collective: the group of all launched ranks.

    auto: one process needs no group; ranks with GPUs use nccl; ranks on CPUs use mpi if mpi4py is
    installed and the launcher is not torchrun, else gloo.  A backend that is named is used, or
    the run ends.

    Args:
        backend: the job's choice.
        device_type: "cpu" or "cuda", where the tensors to be summed live.
        timeout_s: how long Gloo and NCCL wait for the others, at the start; later a little more;
            and how long a rank of MPI that fails waits, under Slurm, until the others know it.

    Raises:
        JobError: the backend cannot work here.
        RankError: launcher and library disagree on the ranks, or the ranks do not meet.
    """
    launch = detect(os.environ)
    if backend == "auto":
        if launch.size == 1:
            return Solo()
        backend, _ = choose(launch, device_type)
    if backend == "mpi":
        if device_type != "cpu":
            message = f"comm.backend: mpi sums CPU tensors, the device is {device_type}"
            raise JobError(f"{message}; say nccl (or gloo)")
        group: Comm = load_mpi("comm.backend: mpi").Mpi(launch, timeout_s)
        return group
    from hpcfl.comm.torch_distributed import Gloo, Nccl

    if backend == "gloo":
        return Gloo(launch, timeout_s)
    if device_type != "cuda":
        raise JobError(f"comm.backend: nccl sums GPU tensors, the device is {device_type}")
    return Nccl(launch, timeout_s)


def choose(launch: Launch, device_type: str) -> tuple[Literal["mpi", "gloo", "nccl"], str]:
    """What auto takes for several ranks, and why."""
    if device_type == "cuda":
        return "nccl", "the ranks have GPUs"
    if launch.launcher == "torchrun":
        return "gloo", "torchrun started ranks on CPUs"
    if find_spec("mpi4py") is None:
        return "gloo", "the ranks are on CPUs, and mpi4py is not installed"
    return "mpi", "the ranks are on CPUs, and mpi4py is installed"
