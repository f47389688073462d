"""How the ranks of torch.distributed find each other: one TCP store on rank 0."""

import os
import re
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple, NoReturn

# torch exports TCPStore, but its stubs do not say so.
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from hpcfl.comm.launch import Launch, require_mpi4py
from hpcfl.comm.solo import end_process
from hpcfl.errors import RankError


class Meeting(NamedTuple):
    """What a rank knows once it has found the others."""

    store: TCPStore
    local_rank: int
    finish: Callable[[], None]
    """Collective: end what the meeting began."""
    abort: Callable[[int], NoReturn]


def meet(launch: Launch, timeout_s: float) -> Meeting:
    """Collective: reach rank 0's store; the way there is MPI's if an MPI launched us.

    Raises:
        RankError: the store cannot be opened or reached within ``timeout_s``.
    """
    if launch.launcher in ("mpich", "openmpi"):
        return _meet_by_mpi(launch, timeout_s)
    host, port = address(launch, os.environ)
    store = _store(host, port, launch, timeout_s)
    place = 0 if launch.local_rank is None else launch.local_rank
    return Meeting(store, place, _nothing, end_process)


def address(launch: Launch, environ: Mapping[str, str]) -> tuple[str, int]:
    """Where rank 0's store listens, from the launcher's variables; port 0: any that is free."""
    if launch.launcher == "none":
        return "127.0.0.1", 0
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if launch.launcher == "slurm":
        host = host or first_host(environ.get("SLURM_STEP_NODELIST", ""))
        port = port or str(_slurm_port(environ))
    if not host or not port or not port.isdigit():
        raise RankError(
            f"{launch.launcher}: MASTER_ADDR is {host!r} and MASTER_PORT {port!r}, expected the"
            " host and the free port of rank 0; set both"
        )
    return host, int(port)


def first_host(nodes: str) -> str:
    """The first host of a Slurm list: "gpu[07-09,12]-ib,login1" -> "gpu07-ib"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first.group()) if first else ""


def _slurm_port(environ: Mapping[str, str]) -> int:
    """A port of the step's own, below the range that systems hand out."""
    job, step = (int(environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return 15000 + (31 * job + step) % 15000


def _meet_by_mpi(launch: Launch, timeout_s: float) -> Meeting:
    require_mpi4py(f"{launch.launcher} without MPI")
    from hpcfl.comm import mpi

    world = mpi.start(launch)
    place, alone = mpi.local_rank(launch, world)
    host = "127.0.0.1" if alone else mpi.share(world, socket.gethostname())
    # Rank 0 listens before it tells the port, which the system chose: no race for it.
    store = _store(host, 0, launch, timeout_s) if launch.rank == 0 else None
    port = int(mpi.share(world, str(store.port) if store else ""))
    store = store or _store(host, port, launch, timeout_s)
    return Meeting(store, place, mpi.finish, lambda code: mpi.abort(world, code))


def _store(host: str, port: int, launch: Launch, timeout_s: float) -> TCPStore:
    timeout = timedelta(seconds=timeout_s)
    try:
        return TCPStore(
            host, port, is_master=launch.rank == 0, timeout=timeout, wait_for_workers=False
        )
    except DistError as error:
        what = "open" if launch.rank == 0 else f"reach, within {timeout_s:g} s,"
        message = f"rank {launch.rank} of {launch.size} cannot {what} the store at {host}:{port}"
        raise RankError(f"{message}; is rank 0 alive, the port free and open?") from error


def _nothing() -> None:
    """A launcher's variables leave nothing to end."""
