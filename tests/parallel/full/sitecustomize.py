"""A disk that is full for some ranks: from a round on they can write no client state.

HPCFL_TEST_RANK says which ranks ("0,2"), HPCFL_TEST_ROUND from which round on.
"""

import errno
import os

from hpcfl.engine import loop

RANKS = [int(rank) for rank in os.environ["HPCFL_TEST_RANK"].split(",")]
ROUND = int(os.environ["HPCFL_TEST_ROUND"])
run_round = loop.run_round


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def played(run, server, t, ask):
    if run.comm.rank in RANKS and t == ROUND:
        os.pwrite = full
    return run_round(run, server, t, ask)


loop.run_round = played
