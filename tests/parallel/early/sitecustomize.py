"""A batch system's signal that comes during the start-up: sent when a module is first imported.

HPCFL_TEST_SIGNAL names it, HPCFL_TEST_MODULE the module; every rank of hpcfl gets it.
"""

import os
import signal
import sys

NUMBER = signal.Signals[os.environ["HPCFL_TEST_SIGNAL"]]
MODULE = os.environ["HPCFL_TEST_MODULE"]
left = [MODULE]


def hook(event, arguments):
    if event == "import" and arguments[0] in left and "hpcfl" in sys.modules:
        left.clear()
        os.kill(os.getpid(), NUMBER)


sys.addaudithook(hook)
