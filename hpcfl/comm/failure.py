"""Fail on all ranks together: every rank learns that one failed, and one rank reports why.

A rank that raised alone would leave the others waiting in their next collective.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from hpcfl.comm.base import Comm
from hpcfl.comm.in_time import LAST_S, in_time
from hpcfl.errors import (
    DiskError,
    HpcflError,
    RankError,
    RemoteRankError,
    as_disk_error,
    ended_program,
    one_line,
    print_traceback,
)
from hpcfl.io.signals import interrupt_exit_code

_Value = TypeVar("_Value")


@contextmanager
def raise_collectively(comm: Comm) -> Iterator[None]:
    """Collective: run a block without communication, then raise on all ranks or on none.

    Any exception but an ``HpcflError`` is raised at once on its rank alone; ``group`` then ends the
    run.

    Raises:
        HpcflError: the block's own, on the lowest rank whose block failed.
        RemoteRankError: on every other rank, with that error's text and exit code.
    """
    failed: HpcflError | None = None
    try:
        yield
    except HpcflError as e:
        failed = e
    # The maximum finds the lowest failed rank, and 0 means that none failed.
    mine = [comm.size - comm.rank, failed.exit_code] if failed else [0, 0]
    first, code = comm.allreduce_max(np.array(mine, dtype=np.float64))
    if not first:
        return
    messages = comm.allgather(f"{type(failed).__name__}: {failed}" if failed else "")
    if failed and comm.size - comm.rank == first:
        # By now every rank raises at this point, and this one reports it.
        failed.collective = failed.prints = True
        raise failed
    raise RemoteRankError(int(code), messages[comm.size - int(first)])


def from_rank_0(comm: Comm, value: Callable[[], _Value]) -> _Value:
    """Collective: call ``value`` on rank 0 alone, and return its result on every rank.

    What rank 0 sees of a disk is thereby what all ranks go by: the others may see a network's file
    system as it was some time ago.

    Args:
        comm: the group of ranks.
        value: returns what JSON can hold; a tuple becomes a list.

    Raises:
        HpcflError: raised by ``value``, see ``raise_collectively``.
    """
    text = ""
    with raise_collectively(comm):
        if comm.rank == 0:
            text = json.dumps(value())
    found: _Value = json.loads(comm.bcast(text))
    return found


@contextmanager
def group(comm: Comm) -> Iterator[Comm]:
    """Close ``comm`` after the block, or abort it where this rank alone fails.

    An error that every rank raises passes through.  An error of this rank alone is printed, and
    ``Comm.abort`` ends the ranks with exit code 1, or 74 where the disk failed.  Ctrl-C ends every
    rank without a message, see ``hpcfl.io.signals.interrupt_exit_code``.  On a single rank errors
    pass unchanged.  A rank that is killed or hangs is noticed elsewhere: by the launcher, by a
    broken connection, or by ``hpcfl.comm.watchdog``.
    """
    try:
        yield comm
    except HpcflError as e:
        if comm.size > 1 and not e.collective:
            _end_all(comm, e)
        _close(comm)
        raise
    except BaseException as e:
        if comm.size > 1:
            _end_all(comm, ended_program(e) if isinstance(e, SystemExit) else as_disk_error(e) or e)
        _close(comm)
        raise
    _close(comm)


def _close(comm: Comm) -> None:
    """Collective: close the group; where a rank is lost meanwhile, end as after any such error."""
    try:
        comm.close()
    except RankError as e:
        _end_all(comm, e)


def _end_all(comm: Comm, error: BaseException) -> None:
    where = f"[rank {comm.rank} of {comm.size}]"
    if isinstance(error, KeyboardInterrupt):  # the launcher sends it to every rank
        comm.abort(interrupt_exit_code())
    line = f"{where} {type(error).__name__}: {error}"

    def report() -> None:
        if isinstance(error, HpcflError):
            sys.stderr.write(line + "\n")
            print_traceback(error)
        else:
            traceback.print_exception(error.__cause__ or error)

    try:
        in_time(LAST_S, report)
    finally:  # also where standard error is closed, or a full pipe that nobody reads
        comm.abort(error.exit_code if isinstance(error, DiskError) else 1, one_line(line))
