"""The process that lives are forked from."""

import os
import sys
from multiprocessing import forkserver

import pytest


@pytest.fixture(scope="session", autouse=True)
def warm_forkserver():
    """Start it where it finds the modules to preload: Python 3.11 does not hand sys.path on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("OMP_NUM_THREADS", "1")  # the threads of a pool do not survive a fork
        forkserver.ensure_running()
