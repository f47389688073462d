"""Fail on all ranks together: every rank learns that one failed, and one reports why."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hpcfl.comm.base import Comm
from hpcfl.errors import DiskError, HpcflError, RemoteRankError, as_disk_error, print_traceback
from hpcfl.signals import interrupt_exit_code


@contextmanager
def raise_collectively(comm: Comm) -> Iterator[None]:
    """Collective: after the block, which communicates nothing, fail on all ranks or on none.

    Raises:
        HpcflError: the block's own, on the lowest rank whose block failed.
        RemoteRankError: on every other rank, with the text of the one that says why.
    """
    failed: HpcflError | None = None
    try:
        yield
    except HpcflError as e:
        failed = e
    mine = [comm.size - comm.rank, failed.exit_code] if failed else [0, 0]
    first, code = comm.allreduce_max(np.array(mine, dtype=np.float64))
    if not first:
        return
    said = comm.allgather(f"{type(failed).__name__}: {failed}" if failed else "")
    if failed and comm.size - comm.rank == first:
        # By now every rank raises at this point, and this one reports it.
        failed.collective = failed.speaker = True
        raise failed
    raise RemoteRankError(int(code), said[comm.size - int(first)])


@contextmanager
def group(comm: Comm) -> Iterator[Comm]:
    """Leave ``comm`` in good order, or end every rank: no failure leaves others waiting.

    A failure of this rank alone is told on standard error, and every rank ends with exit code 1,
    or 74 where the disk failed; Ctrl-C is not, see ``hpcfl.signals.interrupt_exit_code``.
    On a single rank errors pass unchanged.
    """
    try:
        yield comm
    except HpcflError as e:
        if comm.size > 1 and not e.collective:
            _end_all(comm, e)
        comm.close()
        raise
    except BaseException as e:
        if comm.size > 1:
            _end_all(comm, as_disk_error(e) or e)
        comm.close()
        raise
    comm.close()


def _end_all(comm: Comm, error: BaseException) -> None:
    where = f"[rank {comm.rank} of {comm.size}]"
    if isinstance(error, KeyboardInterrupt):  # of a launcher, which sends it to all
        comm.abort(interrupt_exit_code())
    try:
        if isinstance(error, HpcflError):
            sys.stderr.write(f"{where} {type(error).__name__}: {error}\n")
            print_traceback(error)
        else:
            traceback.print_exception(error.__cause__ or error)
    finally:  # where nobody can hear it, too
        comm.abort(error.exit_code if isinstance(error, DiskError) else 1)
