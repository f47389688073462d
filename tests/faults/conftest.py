"""The tracer that kills processes at a system call."""

import os
import shutil
import signal
import subprocess

import pytest

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


def why_no_strace(folder):
    """Why strace cannot kill a process at a system call on this machine; None if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    command = ["strace", "-f", "-qq", "-o", folder / "strace", "-e", "inject=write:signal=KILL"]
    done = subprocess.run([*command, "echo"], capture_output=True, text=True)
    if done.returncode == -signal.SIGKILL:
        return None
    words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"strace cannot do it here ({words[-1]})"
