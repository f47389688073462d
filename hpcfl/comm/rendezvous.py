"""Let the ranks of torch.distributed find each other by a TCP store on rank 0."""

import os
import re
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from ipaddress import ip_address
from itertools import count
from typing import NamedTuple, NoReturn

# torch exports TCPStore, but its stubs do not say so.
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from hpcfl.comm.launcher import Launch
from hpcfl.comm.load_mpi import load_mpi
from hpcfl.comm.solo import end_process
from hpcfl.errors import RankError

LOOPBACK = "127.0.0.1"
INTERFACE = "GLOO_SOCKET_IFNAME"
ADDRESS = "set MASTER_ADDR to an address of rank 0's host that all hosts reach"
LOOK_S = 0.05  # between two tries to reach the store, and between two looks at who is there

_MEETINGS = count()  # of this process; every rank comes to the same ones
_KEPT: dict[tuple[str, int], TCPStore] = {}
"""Stores at a port that the launcher chose, for the next run of this process.

Were rank 0 to close its own after a run, and open another at the same port for the next, a rank
that is ahead would find the old one.
"""


class Rendezvous(NamedTuple):
    """What a rank knows once it has found the others."""

    store: TCPStore
    local_rank: int
    alone: bool
    """Whether all ranks are on this host."""
    finish: Callable[[], None]
    """Collective: end what the meeting began."""
    abort: Callable[[int], NoReturn]


def meet(launch: Launch, backend: str, timeout_s: float) -> Rendezvous:
    """Collective: reach rank 0's store; the way there is MPI's if an MPI launched us.

    Raises:
        RankError: a host's name cannot be resolved, or the store cannot be opened, or not all ranks
            reach it within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    meeting = _meet(launch, backend, timeout_s)
    if backend == "gloo" and not meeting.alone and INTERFACE not in os.environ:
        # Gloo listens at the address that the host's own name has; without one it would take the
        # loopback address, and the others would try it until their time is up.
        resolve(socket.gethostname(), launch, f"set {INTERFACE} to the host's network interface")
    _wait_for_all(meeting.store, launch, deadline, timeout_s)
    return meeting


def _meet(launch: Launch, backend: str, timeout_s: float) -> Rendezvous:
    if launch.launcher in ("mpich", "openmpi"):
        return _meet_by_mpi(launch, backend, timeout_s)
    host, port = address(launch, os.environ)
    alone = on_one_host(launch, os.environ)
    store = _KEPT.get((host, port))
    if store is None:
        # torchrun itself may listen there.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        where = LOOPBACK if alone and not agent else host
        if launch.rank == 0 and not agent:
            store = _open(where, port, launch, timeout_s, alone=alone)
        else:
            store = _reach(where, port, launch, timeout_s)
        if port:
            _KEPT[host, port] = store
    place = 0 if launch.local_rank is None else launch.local_rank
    return Rendezvous(store, place, alone, _nothing, end_process)


def address(launch: Launch, environ: Mapping[str, str]) -> tuple[str, int]:
    """Where rank 0's store listens, from the launcher's variables; port 0: any that is free."""
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
    """Whether all ranks are, as the launcher says, or else as MASTER_ADDR does."""
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
    """A port of the step's own, below the range that systems hand out."""
    job, step = (int(environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return 15000 + (31 * job + step) % 15000


def _meet_by_mpi(launch: Launch, backend: str, timeout_s: float) -> Rendezvous:
    mpi = load_mpi(f"{launch.launcher} without MPI")
    world = mpi.start(launch, backend)
    place, alone = mpi.local_rank(launch, world)
    host = mpi.share(world, os.environ.get("MASTER_ADDR") or socket.gethostname())
    host = LOOPBACK if alone else host
    # Rank 0 listens before it tells the port, which the system chose: no race for it.
    server = _open(host, 0, launch, timeout_s, alone=alone) if launch.rank == 0 else None
    port = int(mpi.share(world, str(server.port) if server else ""))
    store = server or _reach(host, port, launch, timeout_s)
    return Rendezvous(store, place, alone, mpi.finish, lambda code: mpi.abort(world, code))


def listen(host: str, port: int, *, alone: bool) -> socket.socket:
    """A socket at the address by which the other ranks know this host, and at no other.

    Args:
        host: its name or address.
        port: 0: any that is free.
        alone: whether all ranks are on this host; else a loopback address cannot be the one that
            the others know, and the socket listens on all interfaces, with a warning.

    Raises:
        OSError: the name or the port cannot be had.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A client tries all addresses of a name: an IPv4 one, where there is one, is among them.
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    if not alone and ip_address(where[0]).is_loopback:
        warnings.warn(
            f"{host} is {where[0]} on the host itself, so rank 0 listens on all its interfaces; "
            "set MASTER_ADDR to the address that the other hosts reach",
            stacklevel=2,
        )
        where = ("", port)
    return socket.create_server(where, family=family)


def resolve(host: str, launch: Launch, advice: str) -> None:
    """Find out whether the system knows the name of a host.

    Raises:
        RankError: it does not.
    """
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        raise RankError(
            f"rank {launch.rank} of {launch.size}: the name of host {host} cannot be resolved "
            f"({error.strerror}); {advice}",
            speaker=not launch.local_rank,  # once a host
        ) from error


def _wait_for_all(store: TCPStore, launch: Launch, deadline: float, timeout_s: float) -> None:
    """Collective: wait until every rank is there.

    Raises:
        RankError: one does not come in time, or rank 0 is gone.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps the store
    run = next(_MEETINGS)  # a process may play several runs, through one store
    here = [f"hpcfl/{attempt}/here/{run}/{rank}" for rank in range(launch.size)]
    try:
        store.set(here[launch.rank], "")
        while not store.check(here):
            if time.monotonic() > deadline:
                absent = [rank for rank, key in enumerate(here) if not store.check([key])]
                raise RankError(
                    f"rank {launch.rank} of {launch.size}: rank {absent[0]} did not come within "
                    f"{timeout_s:g} s{f' (and {len(absent) - 1} more)' * (len(absent) > 1)}; it "
                    "has ended or hangs (comm.timeout_s)"
                )
            time.sleep(LOOK_S)
    except DistError as error:
        raise RankError(
            f"rank {launch.rank} of {launch.size}: rank 0 is gone before all ranks have met; its "
            "own message, if it could say one, is above",
            speaker=True,  # rank 0 cannot
        ) from error


def _open(host: str, port: int, launch: Launch, timeout_s: float, *, alone: bool) -> TCPStore:
    """Rank 0's end of the store; left to itself, TCPStore listens on all interfaces."""
    resolve(host, launch, ADDRESS)
    timeout = timedelta(seconds=timeout_s)
    try:
        with listen(host, port, alone=alone) as server:
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
        raise _unmet("open", host, port, launch) from error


def _reach(host: str, port: int, launch: Launch, timeout_s: float) -> TCPStore:
    """Another rank's end of the store."""
    resolve(host, launch, ADDRESS)
    timeout = timedelta(seconds=timeout_s)
    deadline = time.monotonic() + timeout_s
    try:
        _wait_until_it_listens(host, port, deadline)
        return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    except (DistError, OSError) as error:
        raise _unmet(f"reach, within {timeout_s:g} s,", host, port, launch) from error


def _wait_until_it_listens(host: str, port: int, deadline: float) -> None:
    """Wait for the store of rank 0; TCPStore, left to try, writes the stack of each failure.

    Raises:
        OSError: nobody listens there in time.
    """
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
        else:
            return


def _unmet(what: str, host: str, port: int, launch: Launch) -> RankError:
    message = f"rank {launch.rank} of {launch.size} cannot {what} the store at {host}:{port}"
    # Rank 0, which would report it, may not be there.
    return RankError(f"{message}; is rank 0 alive, the port free and open?", speaker=True)


def _nothing() -> None:
    """A launcher's variables leave nothing to end."""
