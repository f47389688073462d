"""What a process still does when it ends: never longer than its limit."""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from hpcfl.comm.in_time import in_time

ENDED_S = 60.0  # for Python to start and import torch, too


def test_the_value_and_the_error_of_a_function_in_another_thread():
    assert in_time(60.0, lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        in_time(60.0, lambda: 1 // 0)


def test_what_takes_longer_is_left():
    over = threading.Event()
    with pytest.raises(TimeoutError):
        in_time(0.05, over.wait)
    over.set()


ABORTS = """
import os, sys
from hpcfl.comm import solo
solo.LAST_S = 0.2
sys.stdout = os.fdopen(1, "w")  # with a buffer, whatever PYTHONUNBUFFERED says
print("in the buffer")
solo.Solo().abort(3)
"""
FAILS = """
from hpcfl.comm import failure, solo
solo.LAST_S = failure.LAST_S = 0.2
class Two(solo.Solo):
    size = 2
with failure.group(Two()):
    raise ValueError("first")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "stream", "code"), [(ABORTS, 1, 3), (FAILS, 2, 1)], ids=["aborts", "fails"]
)
def test_a_pipe_that_nobody_reads_keeps_no_rank_alive(program, stream, code):
    """As of a launcher that is stopped: the last message does not fit."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b" " * 4096)
    os.set_blocking(writes, True)
    output = {("stdout", "stderr")[stream - 1]: writes}
    rank = subprocess.Popen([sys.executable, "-c", program], **output)
    os.close(writes)
    try:
        assert rank.wait(ENDED_S) == code
    finally:
        rank.kill()
        rank.wait()
        os.close(reads)
