"""Import the group over MPI, or report which part of MPI is missing."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from hpcfl.errors import JobError
from hpcfl.io.packages import refuse_shadow


def load_mpi(where: str, otherwise: str) -> ModuleType:
    """Import ``hpcfl.comm.mpi``.

    Args:
        where: what needs it; begins the message of an error.
        otherwise: what to do without MPI; ends the message.

    Raises:
        JobError: mpi4py is not installed, or finds no MPI.
    """
    refuse_shadow("mpi4py")
    if find_spec("mpi4py") is None:
        raise JobError(f"{where}: mpi4py is not installed; pip install mpi4py, or {otherwise}")
    try:
        return import_module("hpcfl.comm.mpi")
    except (ImportError, RuntimeError) as error:
        raise JobError(
            f"{where}: mpi4py finds no MPI ({error}); load the site's MPI module, pip install "
            f"mpich, or {otherwise}"
        ) from error
