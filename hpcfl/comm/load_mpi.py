"""Load the group over MPI, where mpi4py and an MPI are installed."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from hpcfl.errors import JobError


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
