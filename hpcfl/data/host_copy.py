"""One copy of the data for all ranks of a host.

The first rank of each host loads the data and saves it in a folder of temporary files that this
user alone can open; all ranks of the host map that file copy-on-write, so that its pages are in
memory once, and then it is removed.  While the first rank loads, the others wait for a lock and not
in a collective: loading may take longer than the time-out of a collective, and the system releases
a lock also where its holder is killed.  A thread of the holder changes the lock's time, by which
the others see that it is not stopped.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import NamedTuple

from torch import Tensor

from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.data import plain_copy
from hpcfl.data.base import Dataset
from hpcfl.errors import RankError
from hpcfl.io.boot_id import boot_id
from hpcfl.io.lock import lock as take_lock
from hpcfl.io.memory import return_freed_memory
from hpcfl.io.regular import create_private, open_private

_EACH = "each rank loads its own copy"
_COPY, _LOCK = "data", "lock"  # files of the folder
_POLL_S = 0.05  # between two looks at the lock
_SIGN_S = 1.0  # between two signs of life of the rank that holds it, at most
_SHOWN = 4  # ranks in a note
# What describing a class of a user, and reading a damaged copy, may raise.
_ERRORS = (LookupError, OSError, RuntimeError, TypeError, ValueError)


class HostData(NamedTuple):
    """The data set of one rank, and lines for the user."""

    dataset: Dataset
    notes: tuple[str, ...]
    """The same on every rank: where the ranks of a host do not share its memory, and why."""


def load_on_hosts(
    load: Callable[[], Dataset], comm: Comm, timeout_s: float, *, mapped: bool = False
) -> HostData:
    """Collective: load the data once on each host.

    The first rank of a host calls ``load``, and the others share the memory of what it returns.
    Every rank calls it where the examples are read from a file when they are used; or where they
    cannot be shared, which a note says.

    Args:
        load: loads and checks the data; without communication.
        comm: the group of ranks.
        timeout_s: after which a rank that loads and gives no sign of life is taken for lost.
        mapped: whether ``load`` is known to map files, of which a host has one copy in memory
            anyway: then all ranks call it at once.

    Raises:
        HpcflError: that of ``load``, on the lowest rank where it failed.
        RemoteRankError: on every other rank, with that error's text and exit code.
        RankError: on this rank alone: the rank that loads is stopped.
    """
    if comm.size == 1:
        dataset = load()
        return_freed_memory()
        return HostData(dataset, ())
    host = f"{socket.gethostname()} {boot_id()}"
    hosts = comm.allgather(host)
    first, shares = hosts.index(host), not mapped and hosts.count(host) > 1
    found: Dataset | None = None
    saved, reason = False, ""
    with ExitStack() as stack, ExitStack() as lock:
        own = ""
        if shares and comm.rank == first:
            own, reason = _make_folder(stack, lock, timeout_s)
        folder = Path(comm.allgather(own)[first])
        if shares and comm.rank != first and folder.is_absolute():  # else there is none
            _wait(folder, f"rank {first} (host {socket.gethostname()})", timeout_s)
        with raise_collectively(comm):
            if not shares:
                found = load()
            elif comm.rank == first:
                with lock:
                    found = load()
                    if not reason:
                        saved, reason = _save(found, folder)
        saved, reason = json.loads(comm.allgather(json.dumps([saved, reason]))[first])
        with raise_collectively(comm):
            if saved:
                try:
                    found = _map(folder)  # also on the first rank, which drops what it loaded
                except _ERRORS as error:
                    reason = f"the copy of rank {first} cannot be mapped ({_text(error)}); {_EACH}"
            if found is None:
                found = load()
            return_freed_memory()
    return HostData(found, _notes(comm.allgather(reason)))


def _make_folder(stack: ExitStack, lock: ExitStack, timeout_s: float) -> tuple[str, str]:
    """Make a folder for the copy, which ``stack`` removes; locked until ``lock`` is closed.

    Returns:
        The folder; and why there is none, else "".
    """
    try:
        folder = stack.enter_context(
            TemporaryDirectory(prefix="hpcfl-data-", ignore_cleanup_errors=True)
        )
        held = lock.enter_context(create_private(Path(folder) / _LOCK)).fileno()
    except OSError as error:
        return "", f"no folder for temporary files (TMPDIR) can be used: {_text(error)}; {_EACH}"
    take_lock(held, fcntl.LOCK_EX)  # where there are no locks, the others wait in a collective
    over = Event()

    def show_life() -> None:
        while not over.wait(min(_SIGN_S, timeout_s / 4)):
            with suppress(OSError):
                os.utime(held)

    thread = Thread(target=show_life, daemon=True)
    lock.callback(thread.join)  # before the file is closed, and after this:
    lock.callback(over.set)
    thread.start()
    return folder, ""


def _wait(folder: Path, holder: str, timeout_s: float) -> None:
    """Wait until the first rank of the host has saved the copy, or has failed.

    Raises:
        RankError: it gives no sign of life.
    """
    # What cannot be opened here is met again when the copy is mapped.
    with suppress(OSError), open_private(folder / _LOCK) as file:
        # Counted in this process' own looks, not by the clock: a job may be suspended.
        last, waited = 0, 0.0
        while waited < timeout_s:
            with suppress(BlockingIOError):
                take_lock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            changed = os.fstat(file.fileno()).st_mtime_ns
            last, waited = changed, 0.0 if changed != last else waited + _POLL_S
            time.sleep(_POLL_S)
        raise RankError(
            f"waited {timeout_s:g} s for {holder}, which loads the data for the ranks of this host "
            "and gives no sign of life: it is stopped, or hangs (comm.timeout_s); start again"
        )


def _save(dataset: Dataset, folder: Path) -> tuple[bool, str]:
    """Save a data set for the others; whether that is done, else why every rank loads its own."""
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    if dataset.mapped or not all(isinstance(part.inputs, Tensor) for part in parts):
        return False, ""  # the system has one copy of the files anyway
    try:
        with create_private(folder / _COPY) as file:
            plain_copy.write(dataset, file)
    except OSError as error:
        return False, (
            f"a copy for the ranks of this host cannot be saved in {folder.parent} (TMPDIR): "
            f"{_text(error)}; {_EACH}"
        )
    except _ERRORS as error:
        return False, (
            f"its data set is not shared ({_text(error)}): a copy holds tensors, numbers and "
            f"transforms of hpcfl alone; {_EACH}"
        )
    return True, ""


def _map(folder: Path) -> Dataset:
    """The saved data set; writing to its tensors changes pages of this process alone."""
    with open_private(folder / _COPY) as file:
        return plain_copy.map_file(file)


def _text(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error).partition("\n")[0] or type(error).__name__


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
