"""One copy of the data for all ranks of a host.

The first rank of each host loads the data and saves it in a folder of temporary files; all ranks of
the host map that file copy-on-write, so that its pages are in memory once, and then it is removed.
While the first rank loads, the others wait for a lock and not in a collective: loading may take
longer than the time-out of a collective, and the system releases a lock also where its holder is
killed.
"""

import fcntl
import json
import pickle
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.comm.base import Comm
from hpcfl.comm.failure import raise_collectively
from hpcfl.data.base import Dataset
from hpcfl.io.boot_id import boot_id
from hpcfl.io.memory import return_freed_memory
from hpcfl.io.regular import check_regular, open_binary, open_write

_EACH = "each rank loads its own copy"
_COPY, _LOCK = "data.pt", "lock"  # files of the folder
_SHOWN = 4  # ranks in a note
# What saving and loading classes of a user may raise.
_ERRORS = (
    pickle.PickleError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


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
    host = f"{socket.gethostname()} {boot_id()}"
    hosts = comm.allgather(host)
    first, shares = hosts.index(host), not mapped and hosts.count(host) > 1
    found: Dataset | None = None
    saved, reason = False, ""
    with ExitStack() as stack, ExitStack() as lock:
        own = ""
        if shares and comm.rank == first:
            own, reason = _make_folder(stack, lock)
        folder = Path(comm.allgather(own)[first])
        with raise_collectively(comm):
            if not shares:
                found = load()
            elif comm.rank == first:
                with lock:
                    found = load()
                    if not reason:
                        saved, reason = _save(found, folder)
            elif folder.is_absolute():  # else there is none
                _wait(folder)
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


def _make_folder(stack: ExitStack, lock: ExitStack) -> tuple[str, str]:
    """Make a folder for the copy, which ``stack`` removes; locked until ``lock`` is closed.

    Returns:
        The folder; and why there is none, else "".
    """
    try:
        folder = stack.enter_context(
            TemporaryDirectory(prefix="hpcfl-data-", ignore_cleanup_errors=True)
        )
        held = lock.enter_context(open_write(Path(folder) / _LOCK))
    except OSError as error:
        return "", f"no folder for temporary files (TMPDIR) can be used: {_text(error)}; {_EACH}"
    with suppress(OSError):  # where there are no locks, the others wait in a collective
        fcntl.flock(held, fcntl.LOCK_EX)
    return folder, ""


def _wait(folder: Path) -> None:
    """Wait until the first rank of the host has saved the copy, or has failed."""
    # What cannot be opened or locked here is met again when the copy is mapped.
    with suppress(OSError), open_binary(folder / _LOCK) as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _save(dataset: Dataset, folder: Path) -> tuple[bool, str]:
    """Save a data set for the others; whether that is done, else why every rank loads its own."""
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    if dataset.mapped or not all(isinstance(part.inputs, Tensor) for part in parts):
        return False, ""  # the system has one copy of the files anyway
    try:
        with open_write(folder / _COPY) as file:
            torch.save(dataset, file)
    except OSError as error:
        return False, (
            f"a copy for the ranks of this host cannot be saved in {folder.parent} (TMPDIR): "
            f"{_text(error)}; {_EACH}"
        )
    except _ERRORS as error:
        return False, (
            f"its data set cannot be sent to other ranks ({_text(error)}): a transform must be a "
            f"function or an object of a class at the top of a module; {_EACH}"
        )
    return True, ""


def _map(folder: Path) -> Dataset:
    """The saved data set; writing to its tensors changes pages of this process alone."""
    path = folder / _COPY
    check_regular(path)
    # A rank of this run has saved it, in a folder that no other user can write to.
    dataset: Dataset = torch.load(path, "cpu", mmap=True, weights_only=False)
    return dataset


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
