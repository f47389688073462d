"""Which launcher started this process, and the group of ranks that follows from it."""

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal, NamedTuple

from hpcfl.comm.base import Comm
from hpcfl.comm.solo import Solo
from hpcfl.errors import JobError, RankError

Launcher = Literal["none", "mpich", "openmpi", "slurm", "torchrun"]
Backend = Literal["auto", "mpi", "gloo", "nccl"]

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_FIRST_SPECIAL_STEP = 4294967290  # Slurm's interactive, batch and extern steps run no tasks


class Launch(NamedTuple):
    """What the environment says of this process."""

    rank: int
    size: int
    local_rank: int | None
    """Place among the ranks of the host; None: the launcher does not say, MPI must be asked."""
    launcher: Launcher


def detect(environ: Mapping[str, str]) -> Launch:
    """The innermost launcher that shows in ``environ``.

    mpirun and torchrun may themselves run inside a Slurm job, whose variables then describe their
    daemons and not the ranks, so they are looked for first.

    Raises:
        RankError: the launcher's variables are incomplete or not numbers.
    """
    if all(name in environ for name in _TORCHRUN):
        return _launch(environ, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "OMPI_COMM_WORLD_SIZE" in environ:
        prefix = "OMPI_COMM_WORLD_"
        return _launch(environ, "openmpi", *(prefix + s for s in ("RANK", "SIZE", "LOCAL_RANK")))
    if "MPI_LOCALRANKID" in environ:
        return _launch(environ, "mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
    if _in_slurm_step(environ):
        return _launch(environ, "slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    if "PMI_SIZE" in environ:
        return _launch(environ, "mpich", "PMI_RANK", "PMI_SIZE", None)
    if "RANK" in environ and "WORLD_SIZE" in environ:
        missing = ", ".join(name for name in _TORCHRUN if name not in environ)
        message = f"environment: RANK and WORLD_SIZE are set as torchrun does, but not {missing}"
        raise RankError(f"{message}; set all five, or unset RANK to run one process")
    return Launch(0, 1, 0, "none")


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


def load_mpi(who: str) -> ModuleType:
    """``hpcfl.comm.mpi``.

    Raises:
        JobError: mpi4py is not installed, or finds no MPI.
    """
    if find_spec("mpi4py") is None:
        raise JobError(f"{who}: mpi4py is not installed; pip install mpi4py, or say gloo")
    try:
        return import_module("hpcfl.comm.mpi")
    except (ImportError, RuntimeError) as error:
        raise JobError(
            f"{who}: mpi4py finds no MPI ({error}); load the site's MPI module, pip install mpich, "
            "or say gloo"
        ) from error


def choose(launch: Launch, device_type: str) -> tuple[Literal["mpi", "gloo", "nccl"], str]:
    """What auto takes for several ranks, and why."""
    if device_type == "cuda":
        return "nccl", "the ranks have GPUs"
    if launch.launcher == "torchrun":
        return "gloo", "torchrun started ranks on CPUs"
    if find_spec("mpi4py") is None:
        return "gloo", "the ranks are on CPUs, and mpi4py is not installed"
    return "mpi", "the ranks are on CPUs, and mpi4py is installed"


def _in_slurm_step(environ: Mapping[str, str]) -> bool:
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < _FIRST_SPECIAL_STEP and "SLURM_PROCID" in environ


def _launch(
    environ: Mapping[str, str], launcher: Launcher, rank: str, size: str, local: str | None
) -> Launch:
    return Launch(
        _number(environ, rank),
        _number(environ, size),
        None if local is None else _number(environ, local),
        launcher,
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name)
    if value is None or not value.isdigit():
        found = "is not set" if value is None else f"is {value!r}"
        raise RankError(f"environment: {name} {found}, expected a count; launch again, cleanly")
    return int(value)
