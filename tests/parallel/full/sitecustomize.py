"""A disk that is full for one rank alone: from a round on it can write no client state.

HPCFL_TEST_RANK says which rank, HPCFL_TEST_ROUND from which round on.
"""

import errno
import os

from hpcfl import engine

RANK, ROUND = int(os.environ["HPCFL_TEST_RANK"]), int(os.environ["HPCFL_TEST_ROUND"])
play_round = engine.play_round


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def played(run, server, t, ask):
    if (run.comm.rank, t) == (RANK, ROUND):
        os.pwrite = full
    return play_round(run, server, t, ask)


engine.play_round = played
