"""One copy of the data for all ranks of a host.

The first rank of each host loads the data and puts it where the others map it
(``hpcfl.data.shared_dataset``).  It tells them where by a message in memory of its own, which they
open through its process as well.  They wait for the message by a lock on that memory and not in a
collective: loading may take longer than the time-out of a collective, and the system releases a
lock also where its holder is killed.
"""

import fcntl
import json
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.data.base import Dataset
from hpcfl.data.shared_dataset import CannotShareError, SharedDataset, share
from hpcfl.io.boot_id import boot_id
from hpcfl.io.memory import return_freed_memory

_TOKEN_BYTES = 16
_SHOWN = 4  # ranks in a note


class HostData(NamedTuple):
    """The data set of one rank, and lines for the user."""

    dataset: Dataset
    notes: tuple[str, ...]
    """The same on every rank: where the ranks of a host do not share its memory, and why."""


def load_on_hosts(load: Callable[[], Dataset], comm: Comm, *, mapped: bool = False) -> HostData:
    """Collective: load the data once on each host.

    The first rank of a host calls ``load``, and the others share the memory of what it returns.
    Every rank calls it where the examples are read from a file when they are used; or where they
    cannot be shared, which a note says.

    Args:
        load: loads and checks the data; without communication.
        comm: the group of ranks.
        mapped: whether ``load`` is known to map files, of which a host has one copy in memory
            anyway: then all ranks call it at once.

    Raises:
        HpcflError: that of ``load``, on the lowest rank where it failed.
        RemoteRankError: on every other rank, with that error's text and exit code.
    """
    if comm.size == 1:
        dataset = load()
        return_freed_memory()
        return HostData(dataset, ())
    found: Dataset | None = None
    reason = ""
    with ExitStack() as stack:
        own = _Mailbox.make(comm.rank, stack)
        ranks = [_Mailbox(*json.loads(text)) for text in comm.allgather(json.dumps(own))]
        members = [other for other in ranks if other.host == own.host]
        with raise_collectively(comm):
            if mapped or len(members) == 1:
                found = load()
            elif members[0].fd < 0:
                found = load()
                reason = "this system has no memory to share; each rank loads its own copy"
            elif comm.rank == members[0].rank:
                found, reason = _load_for_others(load, own, stack)
            else:
                found, reason = _load_from(members[0], load, stack)
            return_freed_memory()
        # By now all ranks have mapped the data, and its memory no longer needs to be open.
    notes = _notes(comm.allgather(reason))
    if found is None:
        raise RuntimeError(f"rank {members[0].rank} left no message about the data")
    return HostData(found, notes)


class _Mailbox(NamedTuple):
    """Where the other ranks of its host find a rank's message."""

    rank: int
    host: str
    """The same for ranks that see each other's processes, and for no others."""
    pid: int
    fd: int
    """-1 where the system has no memory without a name."""
    token: str
    """Stands before the message, to tell it from anything else under this number."""

    @classmethod
    def make(cls, rank: int, stack: ExitStack) -> "_Mailbox":
        """Make this rank's, locked; ``stack`` closes it."""
        token, fd = secrets.token_hex(_TOKEN_BYTES // 2), -1
        with suppress(AttributeError, OSError):
            fd = os.memfd_create("hpcfl-message")
            stack.callback(os.close, fd)
            os.write(fd, token.encode())
            fcntl.flock(fd, fcntl.LOCK_EX)
        return cls(rank, _host(), os.getpid(), fd, token)

    def send(self, message: SharedDataset | str) -> None:
        """Leave the data set, or the reason why there is none, for the others."""
        with os.fdopen(self.fd, "wb", closefd=False) as file:
            file.write(pickle.dumps(message))

    def receive(self, stack: ExitStack) -> Callable[[], SharedDataset | str | None]:
        """Open another rank's; the result waits until it is unlocked, None: that rank failed.

        Raises:
            OSError: it cannot be opened from here.
        """
        fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDONLY)
        stack.callback(os.close, fd)
        if os.read(fd, _TOKEN_BYTES) != self.token.encode():
            raise OSError("/proc shows other processes")

        def wait() -> SharedDataset | str | None:
            fcntl.flock(fd, fcntl.LOCK_SH)
            content = os.pread(fd, os.fstat(fd).st_size, _TOKEN_BYTES)
            if not content:
                return None
            # Written by a rank of this run, whose token it has.
            message: SharedDataset | str = pickle.loads(content)  # noqa: S301
            return message

        return wait


def _host() -> str:
    """Identifies the host, and the set of processes that this one sees."""
    known = [socket.gethostname(), boot_id()]
    with suppress(OSError):  # containers on one host may each have their own
        known.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(known)


def _load_for_others(
    load: Callable[[], Dataset], own: _Mailbox, stack: ExitStack
) -> tuple[Dataset, str]:
    """Load the data, and put it where the others of this host find it.

    Args:
        load: loads it.
        own: this rank's mailbox, which is unlocked in any case.
        stack: keeps the copy open.

    Returns:
        The data set, and a reason why the ranks do not share memory, if they do not.
    """
    try:
        dataset = load()
        try:
            shared = share(dataset, stack)
            dataset = shared.map()  # and drop what was loaded
        except CannotShareError as error:
            own.send(str(error))
            return dataset, str(error)
        own.send(shared)
        return dataset, shared.note
    finally:
        fcntl.flock(own.fd, fcntl.LOCK_UN)


def _load_from(
    first: _Mailbox, load: Callable[[], Dataset], stack: ExitStack
) -> tuple[Dataset | None, str]:
    """Wait until the first rank of this host has loaded the data, and map it.

    Returns:
        The data set, None where that rank failed; and as ``_load_for_others``.
    """
    try:
        wait = first.receive(stack)
    except OSError as error:
        return (
            load(),
            f"rank {first.rank} on the same host cannot be reached ({error}); loads its own copy",
        )
    message = wait()
    if message is None:
        return None, ""
    if isinstance(message, str):
        return load(), message
    try:
        return message.map(), message.note
    except CannotShareError as error:
        return load(), str(error)


def _notes(reasons: Sequence[str]) -> tuple[str, ...]:
    """A line for each reason, with its ranks."""
    ranks: dict[str, list[str]] = {}
    for rank, reason in enumerate(reasons):
        if reason:
            ranks.setdefault(reason, []).append(str(rank))
    return tuple(f"data: {reason} ({_named(found)})" for reason, found in ranks.items())


def _named(ranks: Sequence[str]) -> str:
    more = ", ..." if len(ranks) > _SHOWN else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks[:_SHOWN])}{more}"
