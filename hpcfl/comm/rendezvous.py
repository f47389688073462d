"""Connect the ranks of torch.distributed to a TCP store on rank 0, or that of torchrun."""

import os
import re
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from ipaddress import ip_address
from typing import NamedTuple, NoReturn

# torch exports TCPStore, but its stubs do not say so.
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from hpcfl.comm import secret
from hpcfl.comm.in_time import LAST_S, in_time
from hpcfl.comm.launcher import Launch
from hpcfl.comm.load_mpi import load_mpi
from hpcfl.comm.solo import end_process
from hpcfl.errors import RankError

LOOPBACK = "127.0.0.1"
INTERFACE = "GLOO_SOCKET_IFNAME"
SET_ADDRESS = "set MASTER_ADDR to an address of rank 0's host that all hosts reach"
POLL_S = 0.05  # between two tries to reach the store

_STORES: dict[tuple[str, int], TCPStore] = {}
"""Stores at a port that the launcher chose, kept open for the next run of this process.

If rank 0 closed its store after a run and opened another at the same port for the next one, a rank
that is ahead of rank 0 would connect to the old store.
"""


class Connection(NamedTuple):
    """The connection of a rank to the store of all."""

    store: TCPStore
    local_rank: int
    one_host: bool
    """Whether all ranks are on this host."""
    finish: Callable[[], None]
    """Collective: called when the group is closed."""
    abort: Callable[[int], NoReturn]
    """Ends every rank that it can reach with an exit code."""
    secret: bytes | None = None
    """That of the ranks, where MPI has brought it."""


def connect_to_store(launch: Launch, backend: str, timeout_s: float) -> Connection:
    """Collective: connect to the store of the ranks, which rank 0 opens unless torchrun has.

    Under a launcher of MPI the ranks get the store's address and their secret by MPI, else the
    address from the environment.

    Raises:
        RankError: a host's name cannot be resolved, or the store cannot be opened, or this rank
            does not reach it within ``timeout_s``.
    """
    if launch.launcher in ("mpich", "openmpi"):
        return _connect_by_mpi(launch, backend, timeout_s)
    host, port = address(launch, os.environ)
    one_host = on_one_host(launch, os.environ)
    store = _STORES.get((host, port))
    if store is None:
        # With this variable, torchrun itself listens at the address, and rank 0 must connect, too.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        where = LOOPBACK if one_host and not agent else host
        if launch.rank == 0 and not agent:
            store = _open(where, port, launch, timeout_s, one_host=one_host)
        else:
            store = _reach(where, port, launch, timeout_s)
        if port:
            _STORES[host, port] = store
    local_rank = 0 if launch.local_rank is None else launch.local_rank
    return Connection(store, local_rank, one_host, _do_nothing, end_process)


def address(launch: Launch, environ: Mapping[str, str]) -> tuple[str, int]:
    """The host and port of rank 0's store, from the launcher's variables; port 0: any free one."""
    if launch.launcher == "none":
        return LOOPBACK, 0
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


def on_one_host(launch: Launch, environ: Mapping[str, str]) -> bool:
    """Whether all ranks are on one host, by the launcher's variables, or else by MASTER_ADDR."""
    if launch.launcher == "none":
        return True
    if launch.launcher == "torchrun" and "LOCAL_WORLD_SIZE" in environ:
        return environ["LOCAL_WORLD_SIZE"] == str(launch.size)
    if launch.launcher == "slurm" and "SLURM_STEP_NUM_NODES" in environ:
        return environ["SLURM_STEP_NUM_NODES"] == "1"
    return address(launch, environ)[0] in ("localhost", LOOPBACK, "::1")


def first_host(nodes: str) -> str:
    """The first host of a Slurm list: "gpu[07-09,12]-ib,login1" -> "gpu07-ib"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first.group()) if first else ""


def _slurm_port(environ: Mapping[str, str]) -> int:
    """A port for this step, below the range from which the system assigns ports to others."""
    job, step = (int(environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return 15000 + (31 * job + step) % 15000


def _connect_by_mpi(launch: Launch, backend: str, timeout_s: float) -> Connection:
    mpi = load_mpi(
        f"comm.backend: {backend}: under mpirun of {launch.launcher} ranks find each other by MPI",
        "start the ranks by torchrun or srun",
    )
    world = mpi.start(launch, backend)
    local_rank, one_host = mpi.local_rank(launch, world)
    host = mpi.bcast_text(world, os.environ.get("MASTER_ADDR") or socket.gethostname())
    host = LOOPBACK if one_host else host
    # Rank 0 listens at a port that the system chose before it sends the port to the others, so no
    # other process can take it in between.
    server = _open(host, 0, launch, timeout_s, one_host=one_host) if launch.rank == 0 else None
    port = int(mpi.bcast_text(world, str(server.port) if server else ""))
    store = server or _reach(host, port, launch, timeout_s)
    drawn = bytes.fromhex(mpi.bcast_text(world, secret.draw().hex()))
    return Connection(
        store, local_rank, one_host, mpi.finish, lambda code: mpi.abort(world, code), drawn
    )


def listen(host: str, port: int, *, one_host: bool) -> socket.socket:
    """A socket at the address by which the other ranks know this host, and at no other.

    Args:
        host: its name or address.
        port: 0: any free one.
        one_host: whether all ranks are on this host.  If not, and the name is a loopback address
            here, other hosts know another address: then listen on all interfaces, with a warning.

    Raises:
        OSError: the name cannot be resolved, or the port is not free.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A client tries all addresses of a name, so it also tries the IPv4 address chosen here.
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    if not one_host and ip_address(where[0]).is_loopback:
        warnings.warn(
            f"{host} is {where[0]} on the host itself, so rank 0 listens on all its interfaces; "
            "set MASTER_ADDR to the address that the other hosts reach",
            stacklevel=2,
        )
        where = ("", port)
    return socket.create_server(where, family=family)


def resolve(host: str, launch: Launch, advice: str) -> None:
    """Check that a host's name can be resolved.

    Raises:
        RankError: it cannot; ``advice`` ends the message.
    """
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        raise RankError(
            f"rank {launch.rank} of {launch.size}: the name of host {host} cannot be resolved "
            f"({error.strerror}); {advice}",
            prints=not launch.local_rank,  # one rank of each host
        ) from error


def _open(host: str, port: int, launch: Launch, timeout_s: float, *, one_host: bool) -> TCPStore:
    """Open the store on rank 0, at one address: TCPStore itself would listen on all interfaces."""
    resolve(host, launch, SET_ADDRESS)
    timeout = timedelta(seconds=timeout_s)
    try:
        with listen(host, port, one_host=one_host) as server:
            port = server.getsockname()[1]
            return TCPStore(
                host,
                port,
                is_master=True,
                timeout=timeout,
                wait_for_workers=False,
                master_listen_fd=server.detach(),
            )
    except (DistError, OSError) as error:
        raise _failed("open", host, port, launch) from error


def _reach(host: str, port: int, launch: Launch, timeout_s: float) -> TCPStore:
    """Connect another rank to the store."""
    resolve(host, launch, SET_ADDRESS)
    timeout = timedelta(seconds=timeout_s)
    deadline = time.monotonic() + timeout_s

    def connect() -> TCPStore:
        return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)

    try:
        _wait_until_it_listens(host, port, deadline)
        # A stopped process is connected to, but does not answer.  Where torch sees the end of its
        # time itself, it comes first: a thread that is still in it when Python ends would abort.
        return in_time(timeout_s + LAST_S, connect)
    except (DistError, OSError) as error:
        raise _failed(f"reach, within {timeout_s:g} s,", host, port, launch) from error


def _wait_until_it_listens(host: str, port: int, deadline: float) -> None:
    """Wait until rank 0 listens; TCPStore itself would print a stack trace for each failed try.

    Raises:
        OSError: it does not listen in time.
    """
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return


def _failed(verb: str, host: str, port: int, launch: Launch) -> RankError:
    message = f"rank {launch.rank} of {launch.size} cannot {verb} the store at {host}:{port}"
    # Every rank reports it: rank 0, which usually does, may not be there.
    return RankError(f"{message}; is rank 0 alive, the port free and open?", prints=True)


def _do_nothing() -> None:
    """Do nothing: without MPI there is nothing to finish."""
