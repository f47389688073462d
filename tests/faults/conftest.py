"""The process that lives are forked from, and the tracer that kills them."""

import os
import shutil
import sys
from multiprocessing import forkserver

import pytest

from hpcfl.bench.chaos.kill import no_tracer


@pytest.fixture(scope="session", autouse=True)
def warm_forkserver():
    """Start it where it finds the modules to preload: Python 3.11 does not hand sys.path on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("OMP_NUM_THREADS", "1")  # the threads of a pool do not survive a fork
        forkserver.ensure_running()


@pytest.fixture(scope="session")
def strace(tmp_path_factory):
    """Its path; skips the test where it cannot kill a process at a system call."""
    why = no_tracer(tmp_path_factory.mktemp("strace"))
    if why:
        give_up = pytest.fail if os.environ.get("HPCFL_REQUIRE_STRACE") == "1" else pytest.skip
        give_up(f"{why} (apt-get install strace)")
    return shutil.which("strace")
