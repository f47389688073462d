"""A run whose terminal closes: the system sends SIGHUP, and the terminal takes no more output."""

import os
import subprocess
import sys
import time

import pytest

from tests.parallel.background import PATIENCE_S, held, rounds, write
from tests.parallel.harness import environment
from tests.parallel.outcome import outcome
from tests.signals import not_ignored

# Make standard input, a terminal, the one that controls this process.
CONTROL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
JOB = {"checkpoint": {"every": 100_000}}


@pytest.mark.parametrize("prefix", [[], ["nohup"]], ids=["plain", "nohup"])
def test_a_run_ends_with_a_checkpoint_unless_nohup_protects_it(tmp_path, prefix):
    run, go = tmp_path / "run", tmp_path / "go"
    job = write(tmp_path, **JOB)
    command = [sys.executable, "-m", "hpcfl", "run", str(job), "--out", str(run)]
    ends = os.openpty()
    os.set_blocking(ends[0], False)
    with os.fdopen(ends[0], "rb", 0) as person, os.fdopen(ends[1], "wb", 0) as program:
        with not_ignored():
            process = subprocess.Popen(
                [sys.executable, "-c", CONTROL, *prefix, *command],
                cwd=tmp_path,  # where nohup writes nohup.out
                env=environment(**held(10, go)),
                stdin=program,
                stdout=program,
                stderr=program,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while rounds(run) < 10:
                assert process.poll() is None
                assert time.monotonic() < deadline, "the run does not get so far"
                person.read(1 << 16)
                time.sleep(0.01)
            person.close()
            if prefix:
                go.touch()
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
    assert code == (0 if prefix else 75)
    assert outcome(run).round == rounds(run) == (60 if prefix else 11)
