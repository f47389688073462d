"""The tracer that kills processes at a system call."""

import os
import shutil

import pytest

from hpcfl.bench.chaos.kill import why_no_strace
from tests.forked import ensure_server


@pytest.fixture(scope="session", autouse=True)
def forkserver():
    ensure_server()


@pytest.fixture(scope="session")
def strace(tmp_path_factory):
    """Its path; skips the test where it cannot kill a process at a system call."""
    why = why_no_strace(tmp_path_factory.mktemp("strace"))
    if why:
        give_up = pytest.fail if os.environ.get("HPCFL_REQUIRE_STRACE") == "1" else pytest.skip
        give_up(f"{why} (apt-get install strace)")
    return shutil.which("strace")
