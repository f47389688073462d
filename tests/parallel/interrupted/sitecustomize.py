"""A process that sends itself signals at a given point: HPCFL_TEST_AT and HPCFL_TEST_SEND.

AT is "MODULE", when its import begins, or "MODULE:NAME", when that is called; "#3" behind it means
the third time.  SEND is the names of the signals, in order.
"""

import os
import signal
import sys
from importlib import import_module

NAMES = os.environ["HPCFL_TEST_SEND"].split()
AT, _, TIMES = os.environ["HPCFL_TEST_AT"].partition("#")
MODULE, _, NAME = AT.partition(":")
left = [int(TIMES or 1)]


def reach():
    left[0] -= 1
    if left[0] == 0:
        for name in NAMES:
            os.kill(os.getpid(), signal.Signals[name])


class Imports:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == MODULE:
            reach()


def patch():
    *way, last = NAME.split(".")
    owner = import_module(MODULE)
    for name in way:
        owner = getattr(owner, name)
    whole = getattr(owner, last)

    def patched(*args, **kwargs):
        reach()
        return whole(*args, **kwargs)

    setattr(owner, last, patched)


if NAME:
    patch()
else:
    sys.meta_path.insert(0, Imports)
