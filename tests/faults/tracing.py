"""Attach strace to a process that waits for it."""

import ctypes
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_ANY_TRACER = 0x59616D61  # PR_SET_PTRACER of prctl(2)


def allow_tracing() -> None:
    """Let any process trace this one, where the system restricts that."""
    ctypes.CDLL(None).prctl(_ANY_TRACER, ctypes.c_ulong(-1))  # fails where any may trace anyway


@contextmanager
def traced(strace: str, process: int, *options: str) -> Iterator[None]:
    """Trace a process, which may be told to go on in the block, until it ends."""
    command: Sequence[str] = [strace, "-f", "-qq", *options, "-p", str(process)]
    with subprocess.Popen(command) as tracer:
        while "TracerPid:\t0\n" in Path(f"/proc/{process}/status").read_text():
            assert tracer.poll() is None
            time.sleep(0.01)
        yield
