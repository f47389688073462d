"""Detect which launcher started this process, and its rank."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from hpcfl.errors import RankError

Launcher = Literal["none", "mpich", "openmpi", "slurm", "torchrun"]

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_FIRST_SPECIAL_STEP = 4294967290  # Slurm's interactive, batch and extern steps run no tasks


class Launch(NamedTuple):
    """This process's place among the ranks, as the environment gives it."""

    rank: int
    size: int
    local_rank: int | None
    """Number among the ranks of the host; None where the launcher does not set it, but MPI can."""
    launcher: Launcher


def detect(environ: Mapping[str, str]) -> Launch:
    """Detect the innermost launcher by its variables in ``environ``.

    mpirun and torchrun may run inside a Slurm job, whose variables then describe the daemons of
    mpirun and not the ranks.  So Slurm's variables are read last.

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


def restarts(environ: Mapping[str, str]) -> str:
    """How often torchrun has started these ranks again after one failed: "0", "1", ..."""
    return environ.get("TORCHELASTIC_RESTART_COUNT", "0")


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
